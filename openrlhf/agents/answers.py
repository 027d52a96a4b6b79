"""Short answers to questions: the boxed answer of a text, exact match, token F1, and the reward made of them.

Invariant: scores are in [0, 1] and finite for any text; exact match implies F1 = 1. A text without a box has no
answer. All is done in time linear in the text.

In: texts. Out: numbers. Source: trace.md 12 (the 0.3 rule: paper, E.1.2); normalisation and F1 as in SQuAD.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable

MIN_F1 = 0.3  # less is no reward
CLOSED = ("yes", "no", "noanswer")  # right or wrong, never in part
_STYLES = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*(?=\{)")
_BRACES = re.compile(r"\\boxed\{|[{}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def boxed(text: str) -> str | None:
    """What is in the last whole `\\boxed{}` behind the last `</think>`; braces may be nested. None without one."""
    text = text.rpartition("</think>")[2]
    opened: list[int | None] = []  # where a box's content begins; None for another brace
    last, answer = -1, None
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            opened.append(brace.end() if len(brace[0]) > 1 else None)
        elif opened and (start := opened.pop()) is not None and start > last:
            last, answer = start, text[start : brace.start()].strip()
    return answer


def normalised(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces; LaTeX's text commands leave what they enclose."""
    return " ".join(_ARTICLES.sub(" ", _STYLES.sub("", text).lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1 where the answer is one of the golds after normalisation."""
    return float(any(normalised(answer) == normalised(gold) for gold in golds))


def f1(answer: str, golds: Iterable[str]) -> float:
    """The best token F1 over the golds."""
    return max((_f1(normalised(answer), normalised(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer == gold:
        return 1.0
    if answer in CLOSED or gold in CLOSED:
        return 0.0
    left, right = answer.split(), gold.split()
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0


def reward(answer: str | None, golds: Iterable[str]) -> float:
    """1 for an exact match, else F1 where it reaches MIN_F1, else 0. An empty answer gets nothing.

    Some golds have no words after normalisation ("The The"); an empty box would match them.
    """
    if not answer or not _STYLES.sub("", answer).strip("{} "):
        return 0.0
    score = f1(answer, golds)
    return score if score >= MIN_F1 else 0.0
