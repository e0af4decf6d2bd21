"""One lock for imports: modules of transformers import each other, and a second thread would see half of them.

Held only around imports that may be the first of transformers, and never by a module while it is imported itself.
"""

from __future__ import annotations

from lade.base.locks import fork_safe_lock

IMPORTING = fork_safe_lock()
