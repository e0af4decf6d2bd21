"""The version; the build reads it here too."""

VERSION = "0.2.0"
