"""lade's drafts inside vLLM: `Proposer` is a class for its speculative method `custom_class`.

vLLM is imported when a proposer is made, by nothing else.
"""

from lade.vllm.proposer import Proposer

__all__ = ["Proposer"]
