"""HTTP client of an MLflow server: its REST API, with retries after lost responses, and its artifact store.

The ``mlflow`` package is not used, because its dependencies conflict with Airflow's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from upath import UPath

from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import storage
from paceline.registry.base import StoragePath

ALREADY_EXISTS, NOT_FOUND = "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"

# MLflow's code for a database error, such as two writers that insert the same row.
_CONFLICT = "BAD_REQUEST"
_REFUSED = "INVALID_PARAMETER_VALUE"
_ATTEMPTS, _LONGEST_PAUSE_S = 6, 10.0
_PAGE = 10_000  # model versions in one response
_MODELS_PAGE = 1000
_BLOCK = 1 << 20
# A server may forward an upload to its store before it responds.
_UPLOAD_TIMEOUT = httpx.Timeout(60.0, connect=10.0, read=1800.0)
_ARTIFACTS = "/mlflow-artifacts/artifacts"


class MlflowError(PacelineError):
    """Error response of an MLflow server. ``code`` is MLflow's error code; the message has the URL and its text."""

    def __init__(self, code: str, message: str, url: str) -> None:
        self.code, self._message, self._url = code, message, url
        super().__init__(f"MLflow at {url}: {message} ({code})")

    def __reduce__(self) -> tuple[type[MlflowError], tuple[str, str, str]]:
        return type(self), (self.code, self._message, self._url)


class MlflowUnavailableError(PacelineError):
    """Raised when an MLflow server does not respond, or responds that it is busy or has failed. A retry may succeed."""


class MlflowServer:
    """Client of the REST API of an MLflow server. The parameters are those of ``MlflowRegistry``."""

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | None,
        headers: Mapping[str, str] | None,
        verify: bool | str,
        open_path: Callable[[str], StoragePath],
        patience_s: float | None = None,
    ) -> None:
        parsed = _parse(url)
        self._shown_url = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        for name, value in (headers or {}).items():
            if not value.isascii() or not value.isprintable():  # not shown: it may be a secret
                raise InvalidInputError(
                    f"header {name}", "non-ASCII or control characters", "only printable ASCII characters"
                )
        if isinstance(verify, str) and not Path(verify).is_file():
            raise InvalidInputError("verify", verify, "True, False or the path of a file with accepted certificates")
        # Connections on the loopback interface must not go through a proxy from the environment.
        self._is_local = parsed.host in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/2.0",
            auth=auth,
            headers=dict(headers or {}),
            verify=verify,
            timeout=patience_s or httpx.Timeout(60.0, connect=10.0),
            trust_env=not self._is_local,
        )
        self._open_folder = open_path
        self._retries = Retrying(
            retry=retry_if_exception_type(MlflowUnavailableError),
            stop=stop_after_attempt(1 if patience_s else _ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_PAUSE_S),
            reraise=True,
        )

    def call(self, method: str, path: str, body: object = None, /, **params: object) -> dict[str, Any]:
        """Call ``/api/2.0/mlflow`` + ``path`` and return the parsed response. The call must be safe to repeat.

        Raises
        ------
        MlflowError
            If the server rejects the call.
        MlflowUnavailableError
            If it does not respond in six attempts, or within ``patience_s``.
        """
        return self._retries(self._send, method, path, body, params)

    def call_if_found(self, method: str, path: str, body: object = None, /, **params: object) -> dict[str, Any] | None:
        """Call as :meth:`call` does, but return ``None`` if the entity does not exist.

        A deletion whose response was lost finds no entity when it is repeated.
        """
        try:
            return self.call(method, path, body, **params)
        except MlflowError as error:
            if error.code != NOT_FOUND:
                raise
            return None

    def create(self, path: str, body: object, find: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """Create an entity with ``POST path``, and return the response.

        After a lost response, ``find`` returns the entity of this attempt, or ``None`` if it does not exist. The server
        may still be processing the lost request, so the call may create a second entity.
        """

        def create_or_find() -> dict[str, Any]:
            try:
                return self._send("POST", path, body, {})
            except MlflowUnavailableError:
                if found := find():
                    return found
                raise

        return self._retries(create_or_find)

    def search_versions(self, *conditions: str, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the model versions that meet all conditions, or only the ``newest`` of them, ordered by number."""
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = self.call(
                "GET",
                "/model-versions/search",
                filter=" and ".join(conditions),
                max_results=newest or _PAGE,
                order_by=f"version_number {'DESC' if newest else 'ASC'}",
                page_token=token,
            )
            found += page.get("model_versions", [])
            token = page.get("next_page_token")
            if newest or not token:
                return sorted(found, key=lambda version: int(version["version"]))

    def registered_model(self, name: str) -> dict[str, Any] | None:
        """Return a registered model, with its aliases, or ``None``.

        ``GET /registered-models/get`` makes the server load all versions of the model; the search does not.
        """
        found = self.call("GET", "/registered-models/search", filter=f"name = '{name}'", max_results=1)
        return next(iter(found.get("registered_models", [])), None)

    def registered_models(self) -> list[dict[str, Any]]:
        """Return all registered models."""
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = self.call("GET", "/registered-models/search", max_results=_MODELS_PAGE, page_token=token)
            found += page.get("registered_models", [])
            token = page.get("next_page_token")
            if not token:
                return found

    def write(self, folder: str, path: str, source: UPath, name: str) -> tuple[int, str]:
        """Copy the file ``name`` below ``source`` to ``path`` below ``folder``. Return its size and SHA-256."""
        served = _served_path(folder)
        if served is None:
            return storage.copy(source, name, self._open_path(folder), path)
        with _refused_name("model_dir", name):
            return self._retries(self._upload, source, name, f"{served}/{path}")

    def write_bytes(self, folder: str, path: str, data: bytes) -> None:
        """Write ``data`` to ``path`` below the artifact folder ``folder``."""
        served = _served_path(folder)
        if served is None:
            storage.put(self._open_path(folder), path, data)
        else:
            self._retries(self._put, f"{served}/{path}", data)

    def read(
        self, folder: str, path: str, target: UPath, name: str | None = None, *, size_bytes: int | None = None
    ) -> str:
        """Copy the file ``path`` below the artifact folder to ``name``, by default ``path``, below ``target``.

        Return its SHA-256. Raise FileNotFoundError if the artifact does not exist, and InvalidInputError if it is
        larger than ``size_bytes``.
        """
        name = name or path
        served = _served_path(folder)
        if served is None:
            return storage.copy(self._open_path(folder), path, target, name, size_bytes=size_bytes)[1]
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with _refused_name(folder, path):
            return self._retries(self._download, f"{served}/{path}", target / name, size_bytes)

    def read_bytes(self, folder: str, path: str) -> bytes:
        """Return the content of a small file below the artifact folder. Raises FileNotFoundError if it is missing."""
        served = _served_path(folder)
        if served is None:
            with storage.open_file(self._open_path(folder), path) as file:
                return bytes(file.read(storage.MAX_RECORD_BYTES))  # then the digest of a larger file does not match
        return self._retries(self._load, f"{served}/{path}")

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the path and size in bytes of every file below the artifact folder ``folder``."""
        served = _served_path(folder)
        if served is None:
            root = self._open_path(folder)
            return {path: storage.size_of(root, path) for path in storage.files_below(root, "source")}
        return dict(self._list_served(served, ""))

    def _open_path(self, folder: str) -> UPath:
        try:
            opened = self._open_folder(folder)
            path = opened if isinstance(opened, UPath) else UPath(opened)
        except (ValueError, TypeError, ImportError, OSError) as error:
            raise InvalidInputError("artifact_uri", folder, f"a location that fsspec can open ({error})") from error
        # Another machine must not choose local files, nor through a chain of file systems (``simplecache::file://``).
        if not self._is_local and (storage.local(path) is not None or "::" in folder):
            accepted = (
                "artifacts that the server serves or keeps on an object store, or a local folder if the server is local"
            )
            raise InvalidInputError("artifact_uri", folder, accepted)
        return path

    def _list_served(self, served: str, below: str) -> Iterator[tuple[str, int]]:
        for entry in self.call("GET", _ARTIFACTS, path=f"{served}/{below}".rstrip("/")).get("files", []):
            name = f"{below}/{entry['path']}".lstrip("/")
            if entry.get("is_dir"):
                yield from self._list_served(served, name)
            else:
                yield name, int(entry.get("file_size", 0))

    def _send(self, method: str, path: str, body: object, params: Mapping[str, object]) -> dict[str, Any]:
        with self._connection():
            response = self._http.request(
                method,
                path if path == _ARTIFACTS else f"/mlflow{path}",
                json=body,
                params={key: str(value) for key, value in params.items() if value is not None},
            )
        self._check(response)
        try:
            return dict(response.json())
        except (ValueError, TypeError):
            text = f"got {response.text[:80]!r}, expected a response of MLflow's REST API"
            raise MlflowError("not an MLflow server", text, self._shown_url) from None

    def _upload(self, source: UPath, name: str, path: str) -> tuple[int, str]:
        digest, size = hashlib.sha256(), storage.size_of(source, name)

        def blocks() -> Iterator[bytes]:
            with storage.open_file(source, name) as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    yield block

        self._put(path, blocks(), {"Content-Length": str(size)})
        return size, digest.hexdigest()

    def _put(self, path: str, content: bytes | Iterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        with self._connection():
            response = self._http.put(
                _artifact_url(path), content=content, headers=dict(headers or {}), timeout=_UPLOAD_TIMEOUT
            )
        self._check(response, path)

    def _load(self, path: str) -> bytes:
        content = bytearray()
        for block in self._blocks(path):
            content += block
            if len(content) >= storage.MAX_RECORD_BYTES:
                break
        return bytes(content[: storage.MAX_RECORD_BYTES])  # then the digest of a larger file does not match

    def _download(self, path: str, target: UPath, size_bytes: int | None) -> str:
        digest, size = hashlib.sha256(), 0
        blocks = self._blocks(path)
        first = next(blocks, b"")  # a missing artifact leaves no file
        with target.open("wb") as file:
            for block in chain([first], blocks):
                digest.update(block)
                size += len(block)
                if size_bytes is not None and size > size_bytes:
                    raise InvalidInputError(path, "a larger file", f"{size_bytes} bytes: the file has changed")
                file.write(block)
        return digest.hexdigest()

    def _blocks(self, path: str) -> Iterator[bytes]:
        """Yield an artifact in blocks. Raises FileNotFoundError if it does not exist."""
        with self._connection(), self._http.stream("GET", _artifact_url(path)) as response:
            if not response.is_success:
                response.read()
            if response.status_code == httpx.codes.NOT_FOUND:
                raise FileNotFoundError(path)
            self._check(response, path)
            yield from response.iter_bytes(_BLOCK)

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """Convert connection errors to ``MlflowError`` and ``MlflowUnavailableError``."""
        try:
            yield
        except httpx.LocalProtocolError:  # its text quotes headers, which may be secret
            text = "a header or the path of this request is invalid"
            raise MlflowError("invalid request", text, self._shown_url) from None
        except httpx.TransportError as error:
            text = f"MLflow at {self._shown_url} does not respond: {type(error).__name__} {error}"
            raise MlflowUnavailableError(text) from error

    def _check(self, response: httpx.Response, artifact: str | None = None) -> None:
        """Raise an error for an unsuccessful response. It names the ``artifact`` that was to be read or written."""
        if response.is_success:
            return
        try:
            content = response.json()
            code, message = str(content["error_code"]), str(content["message"])
        except (ValueError, KeyError, TypeError):
            code, message = str(response.status_code), response.text[:200] or response.reason_phrase
        if artifact is not None:
            message = f"{artifact}: {message}"
        if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS or code == _CONFLICT:
            raise MlflowUnavailableError(f"MLflow at {self._shown_url}: {message} ({code})")
        raise MlflowError(code, message, self._shown_url)


@contextmanager
def _refused_name(field: str, name: str) -> Iterator[None]:
    """Convert MLflow's error for a file name that it refuses, which does not contain the name."""
    try:
        yield
    except MlflowError as error:
        if error.code != _REFUSED:
            raise
        raise InvalidInputError(field, name, f"a file name that MLflow accepts ({error})") from None


def _parse(url: str) -> httpx.URL:
    """Return the URL of an MLflow server. The InvalidInputError for a bad URL does not show its password."""
    try:
        parsed = httpx.URL(url)
        valid = parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.query and not parsed.fragment
    except httpx.InvalidURL:
        valid = False
    if not valid:
        shown = re.sub(r"//[^/]*@", "//***@", url)
        raise InvalidInputError("url", shown, "the URL of an MLflow server, such as http://localhost:5000")
    return parsed


def _served_path(folder: str) -> str | None:
    """Return the path of an artifact folder that the server serves itself; ``None`` for a folder elsewhere."""
    parts = urlsplit(folder)
    if parts.scheme != "mlflow-artifacts":
        return None
    if parts.netloc:  # credentials of one server must not be sent to another
        raise InvalidInputError("artifact_uri", folder, "artifacts that the registry's own server stores")
    return parts.path.strip("/")


def _artifact_url(path: str) -> str:
    return f"{_ARTIFACTS}/{quote(path)}"
