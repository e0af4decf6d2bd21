"""The version, read by the package's build too."""

VERSION = "0.2.0"
