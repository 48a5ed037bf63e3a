"""Operations of more than one request: waiting, and adding many documents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _operations as ops
from ._exchange import Deadline, Flow, RetryPolicy, exchange
from ._ids import document_id_of_path
from ._sse import EventDecoder, ServerEvent, error_of
from .errors import (
    ApiError,
    ConfigurationError,
    ConnectionFailedError,
    IngestError,
    QuireError,
    RequestTimeoutError,
    ServiceUnavailableError,
    StreamInterruptedError,
)
from .models import Document, Ingest, IngestReport, Job, JobItem
from .options import DocumentInput

#: True shows a tqdm bar; a callable is called with the number
#: of documents done since its last call.
Progress = bool | Callable[[int], object]

#: Seconds a request waits in the service before the job is asked after instead.
WAIT_SLICE = 20.0
#: Seconds that the service may take for each address that it fetches (fetch.timeout_seconds).
_FETCH_SECONDS = 60.0
#: Seconds of a caller's time that are kept for the service's reply after its wait.
_FOR_THE_REPLY = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


def wait_for_job(id: str, policy: RetryPolicy, deadline: Deadline) -> Flow[Job]:
    """Returns the job once it is finished."""
    pause = _FIRST_PAUSE
    while True:
        job = yield from exchange(ops.get_job(id), policy, deadline=deadline)
        if job.finished:
            return job
        yield from deadline.pause(
            pause, f"job {id} was at {job.progress.ratio:.0%} and not finished"
        )
        pause = min(pause * 2, _LONGEST_PAUSE)


def wait_until_ready(timeout: float) -> Flow[None]:
    """Returns once /readyz says so, whatever fails before."""
    deadline = Deadline(timeout)
    reason = "not asked yet"
    while True:
        try:
            once = RetryPolicy(max_retries=0)
            return (yield from exchange(ops.ready(), once, deadline=deadline))
        except (ConnectionFailedError, RequestTimeoutError, ServiceUnavailableError) as error:
            reason = str(error)
        yield from deadline.pause(0.1, f"the service was not ready ({reason})")


def job_of_event(event: ServerEvent) -> Job | None:
    """The job in an event of its stream. None: an event that this version does not know."""
    if event.name in ("progress", "done"):
        return Job.from_json(event.json(), event.name)
    if event.name == "error":
        raise error_of(event)
    return None


class JobEvents:
    """A job from the bytes of its events, and whether they came to its end."""

    def __init__(self, id: str) -> None:
        self._id, self._last = id, "not yet seen"
        self._decoder = EventDecoder()
        self._finished = False

    def feed(self, piece: bytes) -> Iterator[Job]:
        """The states of the job that `piece` completes."""
        for event in self._decoder.feed(piece):
            try:
                job = job_of_event(event)
            except ServiceUnavailableError as error:  # it shuts down, and the job goes on later
                self.end(error)
                raise
            if job is not None:
                self._last, self._finished = job.status, job.finished
                yield job

    def end(self, error: QuireError | None = None) -> None:
        """The stream is over, or `error` broke it off.
        Raises StreamInterruptedError unless the job is finished."""
        if not self._finished:
            reason = error or "the service closed the connection"
            raise StreamInterruptedError(
                f"the events of job {self._id} broke off while it was {self._last}: {reason}; "
                "jobs.wait() follows it further"
            ) from error


def wait_for_documents(
    ids: Sequence[str], policy: RetryPolicy, timeout: float | None
) -> Flow[list[Document]]:
    """Returns the documents once each is ready. Raises IngestError when some failed."""
    deadline = Deadline(timeout)
    out: list[Document] = []
    for name in ops.texts(ids, "ids"):
        pause = _FIRST_PAUSE
        while True:
            document = yield from exchange(ops.get_document(name), policy, deadline=deadline)
            if document.status in ("ready", "failed"):
                out.append(document)
                break
            yield from deadline.pause(pause, f"{name} was {document.status} and not ready")
            pause = min(pause * 2, _LONGEST_PAUSE)
    failed = [
        JobItem(index=i, id=d.id, result="failed", status=d.status, error=d.error)
        for i, d in enumerate(out)
        if d.status == "failed"
    ]
    if failed:
        reason = failed[0].error.message if failed[0].error else "no reason given"
        raise IngestError(
            f"{len(failed)} of {len(out)} documents could not be cached: {failed[0].id}: {reason}",
            failed,
        )
    return out


def _finish(ingest: Ingest, policy: RetryPolicy, deadline: Deadline) -> Flow[Ingest]:
    if ingest.finished:
        return ingest
    job = yield from wait_for_job(ingest.job_id, policy, deadline)
    return Ingest(
        job_id=job.id,
        status=job.status,
        counts=job.counts,
        results=job.results,
        usage=job.usage,
        raw=job.raw,
    )


def _slice(wait: bool, deadline: Deadline) -> Flow[float]:
    if not wait:
        return 0.0
    left = yield from deadline.left()
    # The service waits less than the caller does, so that its reply comes in time and says which
    # job goes on.
    return WAIT_SLICE if left is None else min(WAIT_SLICE, max(0.0, left - _FOR_THE_REPLY))


def add_document(
    document: DocumentInput,
    options: Mapping[str, Any],
    wait: bool,
    timeout: float | None,
    key: str | None,
    policy: RetryPolicy,
) -> Flow[Ingest]:
    """Posts one document, and with `wait` returns once it is cached.
    A document that failed raises."""
    deadline = Deadline(timeout)
    body = {**document, **options}
    check_document(body, "the document")
    seconds = yield from _slice(wait, deadline)
    ingest = yield from exchange(
        ops.post_documents(body, seconds, key, seconds + ops.GRACE_SECONDS),
        policy,
        deadline=deadline,
    )
    if wait:
        ingest = yield from _finish(ingest, policy, deadline)
        ingest.raise_for_failures()
    return ingest


def put_document(
    id: str,
    body: Mapping[str, Any],
    if_match: str | None,
    only_new: bool,
    wait: bool,
    timeout: float | None,
    policy: RetryPolicy,
) -> Flow[Ingest]:
    """Creates or replaces one document."""
    deadline = Deadline(timeout)
    check_document(body, id)
    seconds = yield from _slice(wait, deadline)
    ingest = yield from exchange(
        ops.put_document(id, body, if_match, only_new, seconds, seconds + ops.GRACE_SECONDS),
        policy,
        deadline=deadline,
    )
    if wait:
        ingest = yield from _finish(ingest, policy, deadline)
        ingest.raise_for_failures()
    return ingest


def check_document(document: Mapping[str, Any], name: str) -> None:
    """Raises ConfigurationError unless exactly one of text, chunks and url is given."""
    given = [k for k in ("text", "chunks", "url") if document.get(k) is not None]
    if "url" in given and len(given) > 1:
        raise ConfigurationError(f"{name}: url stands for the text; give it alone")
    if len(given) != 1:
        raise ConfigurationError(f"{name}: give either text or chunks")
    if isinstance(document.get("chunks"), str):
        raise ConfigurationError(f"{name}: chunks is one text; give a list, or text")


def add_documents(
    documents: Iterable[DocumentInput | str],
    options: Mapping[str, Any],
    *,
    batch_size: int,
    batch_bytes: int,
    wait: bool,
    deadline: Deadline,
    progress: Progress,
    policy: RetryPolicy,
) -> Flow[IngestReport]:
    """Posts documents in batches. Each that cannot be cached is in the report, also one that is
    too large for a request; a batch the service refuses otherwise raises."""
    report = IngestReport()
    done = 0
    with Bar(progress, documents) as bar:
        waiting: list[list[Mapping[str, Any]]] = []
        more = batches(documents, batch_size, batch_bytes)
        while batch := waiting.pop() if waiting else next(more, None):
            if done:
                yield from deadline.check(f"{done} documents were added, and not all")
            seconds = yield from _slice(wait, deadline)
            fetched = sum(document.get("url") is not None for document in batch)
            call = ops.post_documents(
                {"documents": batch, **options},
                seconds,
                None,
                seconds + ops.GRACE_SECONDS + fetched * _FETCH_SECONDS,
            )
            try:
                ingest = yield from exchange(call, policy, deadline=deadline)
            except ApiError as error:
                if error.status != _TOO_LARGE:
                    raise _moved(error, done) from None
                if len(batch) > 1:
                    half = len(batch) // 2
                    waiting += [batch[half:], batch[:half]]
                    continue
                report.refuse(done, batch[0].get("id"), error, f"documents[{done}]")
            else:
                if wait:
                    ingest = yield from _finish(ingest, policy, deadline)
                report.add(done, ingest.job_id, ingest.results, ingest.usage)
            done += len(batch)
            bar.update(len(batch))
    return report


def _moved(error: ApiError, start: int) -> ApiError:
    """The error with `documents[i]` counted over all batches instead of within one."""

    def renamed(text: str) -> str:
        return re.sub(
            r"documents\[(\d+)\]", lambda found: f"documents[{int(found[1]) + start}]", text
        )

    body = dict(error.body)
    if isinstance(body.get("detail"), str):
        body["detail"] = renamed(body["detail"])
    if isinstance(body.get("error"), Mapping):
        body["error"] = {
            k: renamed(v) if isinstance(v, str) else v for k, v in body["error"].items()
        }
    moved = type(error)(error.status, body, {})
    moved.retry_after, moved.should_retry = error.retry_after, error.should_retry
    return moved


def batches(
    documents: Iterable[DocumentInput | str], size: int, size_bytes: int
) -> Iterator[list[Mapping[str, Any]]]:
    """Documents in order, at most `size` and about `size_bytes` of JSON together;
    one that is larger goes alone."""
    if size < 1:
        raise ConfigurationError(f"batch_size is {size}; it must be at least 1")
    if isinstance(documents, (str, Mapping)):
        # Else each letter, or each name of a member, would be a document.
        raise ConfigurationError("documents is one document; give a list, or use add()")
    batch: list[Mapping[str, Any]] = []
    total = 0
    for index, item in enumerate(documents):
        document: Mapping[str, Any] = {"text": item} if isinstance(item, str) else item
        check_document(document, f"documents[{index}]")
        num_bytes = _json_bytes(document, f"documents[{index}]")
        if batch and total + num_bytes > size_bytes:
            yield batch
            batch, total = [], 0
        batch.append(document)
        total += num_bytes
        if len(batch) >= size:  # at once: the next document may be long in coming
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _json_bytes(document: Mapping[str, Any], name: str) -> int:
    try:
        return len(json.dumps(document, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} cannot be written as JSON: {error}") from None


class Bar:
    """A tqdm bar, a callable, or nothing."""

    def __init__(self, progress: Progress, items: Iterable[Any]) -> None:
        self._call = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=len(items) if isinstance(items, Sequence) else None,
                unit="doc",
                desc="caching",
            )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int) -> None:
        """Counts `count` more as done."""
        if self._bar is not None:
            self._bar.update(count)
        if self._call is not None:
            self._call(count)


#: Endings of files that the service reads, whatever their bytes look like.
_NEEDS_READER = frozenset(
    [
        ".pdf",
        ".docx",
        ".doc",
        ".odt",
        ".epub",
        ".rtf",
        ".html",
        ".htm",
        ".xhtml",
        ".csv",
        ".tsv",
        ".mbox",
        ".eml",
        ".mht",
        ".mhtml",
        ".xlsx",
        ".ods",
        ".pptx",
        ".odp",
    ]
)

#: The body is larger than server.max_body_bytes.
_TOO_LARGE = 413
#: Answers about a file itself; others are about the request.
_FILE_REFUSED = (400, _TOO_LARGE, 415, 422)


@dataclass(frozen=True)
class FoundFile:
    """A file, and its path below the root."""

    path: Path
    name: str


def _files_below(folder: Path) -> Iterator[Path]:
    """Files of a folder and of those below it, without hidden ones and links to folders, as the
    command line takes them."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _files_below(path)


def _each_file(paths: str | Path | Iterable[str | Path]) -> Iterator[tuple[Path, Path]]:
    """Every file with the folder that its name counts from."""
    for one in [paths] if isinstance(paths, (str, Path)) else paths:
        path = Path(one)
        if path.is_dir():
            for file in _files_below(path):
                yield file, path
        else:
            yield path, path.parent


def find_files(
    paths: str | Path | Iterable[str | Path], root: str | Path | None
) -> list[FoundFile]:
    """The files, also those below folders, with their names below `root`, or without one below the
    folder that was named."""
    found: list[FoundFile] = []
    file_of: dict[str, Path] = {}
    for path, folder in _each_file(paths):
        name = path.relative_to(folder).as_posix()
        if root is not None:
            try:
                name = path.resolve().relative_to(Path(root).resolve()).as_posix()
            except ValueError:
                raise ConfigurationError(f"{path} is not below root {root}") from None
        name_id = document_id_of_path(name)
        other = file_of.setdefault(name_id, path)
        if other is not path:
            raise ConfigurationError(
                f"{other} and {path} both have the id {name_id}; give the folder above them as root"
            )
        found.append(FoundFile(path, name))
    return found


def text_of(file: FoundFile) -> str | None:
    """The text of a file in UTF-8; None: the service has to read it."""
    if file.path.suffix.lower() in _NEEDS_READER:
        return None
    try:
        text = file.path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def document_of(file: FoundFile, text: str, metadata: Mapping[str, Any]) -> DocumentInput:
    return {
        "id": document_id_of_path(file.name),
        "title": file.path.stem,
        "text": text,
        "metadata": {**metadata, "source": file.name.encode(errors="replace").decode()},
    }


def add_files(
    files: Sequence[FoundFile],
    metadata: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    wait: bool,
    timeout: float | None,
    progress: Progress,
    policy: RetryPolicy,
) -> Flow[IngestReport]:
    """Posts texts in batches, then each other file in a form of its own, which the service reads.
    A file that it cannot read is in the report."""
    deadline = Deadline(timeout)
    others: list[FoundFile] = []
    for file in files:  # one that cannot be opened ends this before anything is sent
        file.path.open("rb").close()

    def texts() -> Iterator[DocumentInput]:
        for file in files:
            text = text_of(file)
            if text is None:
                others.append(file)
            else:
                yield document_of(file, text, metadata)

    report = yield from add_documents(
        texts(),
        options,
        batch_size=64,
        batch_bytes=8 << 20,
        wait=wait,
        deadline=deadline,
        progress=progress,
        policy=policy,
    )
    with Bar(progress, others) as bar:
        for file in others:
            if report.results:
                yield from deadline.check(f"{len(report.results)} files were added, and not all")
            seconds = yield from _slice(wait, deadline)
            call = ops.post_file(
                file.name,
                file.path.read_bytes(),
                metadata,
                options,
                seconds,
                seconds + ops.GRACE_SECONDS,
            )
            start = len(report.results)
            try:
                ingest = yield from exchange(call, policy, deadline=deadline)
                if wait:
                    ingest = yield from _finish(ingest, policy, deadline)
                report.add(start, ingest.job_id, ingest.results, ingest.usage)
            except ApiError as error:
                if error.status not in _FILE_REFUSED:
                    raise
                report.refuse(start, document_id_of_path(file.name), error, str(file.path))
            bar.update(1)
    return report
