"""A file's documents, and which job of them is meant."""

import secrets
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from torchtally.errors import Refused
from torchtally.inject import adding
from torchtally.inject.observer import map_name
from torchtally.local import nested_jobs, schema, trainjob, webhook
from torchtally.local.job import LocalJob

API_VERSION, KIND = "kubeflow.org/v1", "PyTorchJob"


class _Loader(yaml.SafeLoader):
    """Like Kubernetes, takes what looks like a date for text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One job that was found valid, and the documents that stood beside it."""

    job: LocalJob
    warnings: tuple[str, ...]
    others: tuple[str, ...]  # "Service demo", "PyTorchJob other"


def load(path: str, name: str | None = None, *, observe: bool = False) -> Manifest:
    """Read the job of this name (if there is one only, no name is needed) from a file, or from stdin for `-`.

    With `observe`, its pods have the observer.
    """
    source = "stdin" if path == "-" else path
    documents = [*_documents(path, source, observe)]
    jobs = [document for document in documents if document.get("kind") in (KIND, trainjob.KIND)]
    names = [_title(job).partition(" ")[2] for job in jobs]
    if not jobs:
        kinds = ", ".join(_title(document) for document in documents) or "nothing"
        raise Refused(f"{source}: no {KIND} and no {trainjob.KIND} in it, only {kinds}")
    if name is None and len(jobs) > 1:
        raise Refused(f"{source}: several jobs ({', '.join(map(_title, jobs))}): choose one with --name")
    if name is not None and name not in names:
        raise Refused(f"--name {name} must be one of the jobs in {source}: {', '.join(names)}")
    if name is not None and names.count(name) > 1:
        raise Refused(f"{source}: several jobs of the name {name!r}: give each a name of its own")
    chosen = jobs[names.index(name) if name is not None else 0]
    used, config = [chosen], _config(documents)
    if chosen["kind"] == KIND:
        warnings = _check(chosen)
        job = LocalJob.from_manifest(chosen, config=config)
    else:
        _check_version(chosen, trainjob.API_VERSION)
        trainjob.check(chosen)
        if runtime := trainjob.runtime_of(chosen, documents):
            used.append(runtime)
        job, warnings = trainjob.local_job(chosen, runtime, config)
    others = (each for each in documents if not any(each is one for one in used) and not _is_mounted(each))
    return Manifest(job=job, warnings=tuple(warnings), others=tuple(map(_title, others)))


def _documents(path: str, source: str, observe: bool) -> Iterator[dict[str, Any]]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        if observe:
            text, _ = adding.injected(text)
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except Refused as error:
        raise Refused(f"{source}: {error}") from None
    except OSError as error:
        raise Refused(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{source}: not text in UTF-8: save the manifest as UTF-8") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f", line {where.line + 1}, column {where.column + 1}" if where else ""
        raise Refused(f"{source}{place}: not YAML: {getattr(error, 'problem', None) or error}") from None
    yield from _objects(documents, source)


def _objects(documents: list[Any], source: str) -> Iterator[dict[str, Any]]:
    for document in documents:
        if not isinstance(document, dict):
            found = f"{schema.json_type(document)}: {str(document)[:60]!r}"
            raise Refused(f"{source}: not a Kubernetes object, but {found}")
        document = _without_nulls(document)
        if problems := [*schema.wrapper_errors(document)]:
            raise Refused(f"{source}: {_title(document)} is invalid: {'; '.join(problems)}")
        if (inner := nested_jobs.inside(document)) is not None:
            yield from _objects([*inner], source)
        else:
            yield document


def _check(document: dict[str, Any]) -> list[str]:
    """Everything that would be refused on the way into a cluster; returns the warnings."""
    _check_version(document, API_VERSION)
    if errors := list(schema.errors(document)):
        raise Refused(f"{_title(document)} is invalid: {'; '.join(errors)}")
    warnings, errors = webhook.validate(document)
    if errors:
        raise Refused(f"{_title(document)} is invalid: {webhook.aggregate(errors)}")
    if not document["spec"]["pytorchReplicaSpecs"]:
        raise Refused(f"{_title(document)} has no replicas: spec.pytorchReplicaSpecs is empty, and needs a Master")
    return warnings


def _check_version(document: dict[str, Any], known: str) -> None:
    """Raise Refused for another version; make a name where it is to be generated."""
    if (version := document.get("apiVersion")) != known:
        raise Refused(f"apiVersion: {version!r} is no version of {document['kind']}, only {known!r} is")
    metadata = document.get("metadata") or {}
    if isinstance(metadata, dict) and not metadata.get("name") and isinstance(metadata.get("generateName"), str):
        suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
        document["metadata"] = metadata | {"name": metadata["generateName"] + suffix}


def _config(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, str]]:
    """The ConfigMaps and Secrets of the file: (kind, name) -> data."""
    found = {}
    for document in documents:
        kind, metadata = document.get("kind"), document.get("metadata")
        if kind in ("ConfigMap", "Secret") and isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
            data = _texts(document.get("data"))
            if kind == "Secret":
                data = {key: schema.base64_text(value) for key, value in data.items()}
                data |= _texts(document.get("stringData"))
            found[kind, metadata["name"]] = data
    return found


def _texts(data: Any) -> dict[str, str]:
    return {key: str(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _is_mounted(document: dict[str, Any]) -> bool:
    return _title(document) == f"ConfigMap {map_name()}"


def _title(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return f"{document.get('kind')} {metadata.get('name') or metadata.get('generateName') or '(no name)'}"


def _without_nulls(value: Any) -> Any:
    """A field that is null counts as absent, as in the API server."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
