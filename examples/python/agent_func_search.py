"""Multi-hop questions with a search tool, for `--train.agent_func_path examples/python/agent_func_search.py`.

The model may search a corpus on this machine, and gives its answer in \\boxed{}. The reward is 1 for an exact match
with one of the label's answers, the token F1 where it is at least 0.3, else 0. The corpus never changes, so an episode
has no state but its text.

    SEARCH_CORPUS     folder of the corpus, with its index (python -m openrlhf.agents.retrieval); needed
    SEARCH_ENCODER    folder of the encoder, where it is not where it was when the index was built
    SEARCH_TOP_K      passages of an answer (default 3)
    SEARCH_MAX_TURNS  turns of the model (default 8)

Data: `python -m examples.tasks.search`; a label is a JSON object with `answers`. Without `--data.apply_chat_template`.
"""

import asyncio
import json
import os

from openrlhf.agents import answers
from openrlhf.agents.retrieval import MAX_K, RetrievalError, Retriever
from openrlhf.agents.settings import whole_number
from openrlhf.agents.tool_agent import Outcome, Start, ToolAgent, ToolAgentExecutor
from openrlhf.agents.tools import Tool, Toolbox

SYSTEM = (
    "Answer the question. You may search short texts with the tool `search`, if need be several times. "
    "When you are sure, answer without calling a tool, and put the answer, as short as possible, in \\boxed{}."
)
PASSAGE_CHARS = 800


def top_k() -> int:
    """How many passages a search gives."""
    return whole_number("SEARCH_TOP_K", 3, MAX_K)


async def retriever() -> Retriever:
    """The corpus of this process. Raises RetrievalError, which names the variable to set."""
    folder = os.environ.get("SEARCH_CORPUS")
    if not folder:
        raise RetrievalError("SEARCH_CORPUS is not set; name the folder of a corpus (python -m examples.tasks.search)")
    return await asyncio.to_thread(Retriever.open, folder, os.environ.get("SEARCH_ENCODER", ""))


async def search(query: str) -> str:
    """Finds the passages that fit a query best.

    Args:
        query: What to look for, in a few words.
    """
    hits = await (await retriever()).search(query, top_k())
    return "\n\n".join(f"{hit.passage.title}: {hit.passage.text[:PASSAGE_CHARS]}" for hit in hits)


def golds(label: str) -> list[str]:
    """The right answers of a label. Raises ValueError for another form of label."""
    try:
        found = json.loads(label)["answers"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the label {label[:100]!r} is not a JSON object with a list `answers`") from error
    if not isinstance(found, list) or not found or not all(isinstance(answer, str) for answer in found):
        raise ValueError(f"the label {label[:100]!r} needs a list of texts, `answers`")
    return found


class SearchAgent(ToolAgent):
    """One question."""

    log_names = ("em", "f1")

    async def start(self, prompt: str, label: str) -> Start:
        await retriever()  # a missing index or a wrong setting is not the model's to read
        top_k()
        self.answers = golds(label)
        self.max_turns = whole_number("SEARCH_MAX_TURNS", 8, 1000)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
        return Start(messages, Toolbox([Tool(search)]))

    async def finish(self, text: str) -> Outcome:
        answer = answers.boxed(text)
        if not answer:
            return Outcome(done=True)
        logs = {"em": answers.exact_match(answer, self.answers), "f1": answers.f1(answer, self.answers)}
        return Outcome(done=True, reward=answers.reward(answer, self.answers), logs=logs)


class AgentExecutor(ToolAgentExecutor):
    """What `--train.agent_func_path` loads from this file."""

    def __init__(self) -> None:
        super().__init__(SearchAgent)
