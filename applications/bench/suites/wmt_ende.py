"""WMT news test sentences, English to German, under the instruction of MCSD (github.com/NJUNLP/MCSD).

Not shipped: the sentences are customarily used in research, but nobody states a licence for them. Read from MCSD's
dataset/wmt_ende.json, else made in the same form from WMT 14 on the hub.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.hub import Hub
from lade.applications.bench.suites.sources import DataRow, Local, load
from lade.applications.bench.suites.suite import Suite


def prompt(number: int, row: DataRow) -> Prompt:
    return Prompt(number, (row["prompt"],))


def translation(number: int, row: DataRow) -> Prompt:
    """Other sentences than MCSD's choice, hence ids that no run on those has."""
    text = f"Translate the input English sentence into German.\nInput: {row['translation']['en']}\nOutput: "
    return Prompt(f"newstest2014/{number}", (text,))


SUITE = Suite(
    "wmt_ende",
    partial(
        load,
        "wmt_ende",
        Local("wmt_ende/wmt_ende.json", prompt, "dataset/wmt_ende.json of github.com/NJUNLP/MCSD"),
        Hub("wmt/wmt14", "de-en", "test", translation),
    ),
    "unclear (research use is customary)",
)
