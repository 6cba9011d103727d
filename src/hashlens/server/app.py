"""The application: a service in, the page and the HTTP interface out.

Nothing that a client sends is used as a path or an address: images of the index are requested by id, and uploads are
decoded within limits, in separate processes.
"""

import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import jinja2
from fastapi import FastAPI, Query, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

import hashlens
from hashlens.clicks.file import read_clicks
from hashlens.codes.model import GENERAL, built_with
from hashlens.data.images import MAX_BYTES, UnreadableImage
from hashlens.data.thumbnails import file_of
from hashlens.files import cache_dir, quoted
from hashlens.index.catalog import Catalog
from hashlens.index.engines.server import Engine
from hashlens.index.folder import IndexFolder
from hashlens.search import Searcher
from hashlens.server.access import ANYONE, CLICKS, Access
from hashlens.server.guard import REQUEST, Guard
from hashlens.server.jobs import Job
from hashlens.server.limits import MAX_ID, MAX_ITEMS, USUAL, Limits
from hashlens.server.problems import PROBLEM, explain_errors
from hashlens.server.requests import (
    Added,
    Asked,
    Clicks,
    Id,
    documented,
    documented_add,
    documented_clicks,
    from_json,
    json_object,
    media_type,
    timeout,
    with_image,
)
from hashlens.server.service import Service

FORM = "multipart/form-data"
SIZES = {"small": 240, "large": 800}  # pixels of thumbnails
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/dom.js": ("dom.js", "text/javascript"),
    "/folder.js": ("folder.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def create_app(
    searcher: Searcher,
    *,
    limits: Limits = USUAL,
    images: Path | None = None,
    access: Access = ANYONE,
    add_to: Path | None = None,
    ready: Callable[[], Any] = lambda: None,
) -> FastAPI:
    """The page and the HTTP interface for one index; `images` is the folder its images were moved to.

    `add_to` is the folder for images that clients add; `ready` is called before the first request.
    """
    service = Service(searcher, limits, images, add_to)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        ready()
        yield
        await service.close()

    app = FastAPI(
        title="hashlens", version=hashlens.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Search for similar images by short binary codes.",
    )  # fmt: skip
    if access.origins:
        methods, headers = ["GET", "POST", "DELETE"], ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, allow_origins=access.origins, allow_methods=methods, allow_headers=headers)
    app.add_middleware(Guard, metrics=service.metrics, limits=limits, access=access)
    app.state.service = service
    explain_errors(app)
    _add_pages(app)
    _add_search(app, service)
    _add_items(app, service)
    _add_images(app, service)
    _add_clicks(app, service)
    _add_jobs(app, service)
    _add_facts(app, service, access)
    return app


def _add_search(app: FastAPI, service: Service) -> None:
    limits = service.limits

    def search_now(query: Any, asked: Asked) -> dict[str, Any]:
        how = asked.how_many(limits), asked.radius, asked.label, asked.histogram, asked.by
        found = service.searcher.search(query, *how)
        for hit in found["hits"]:
            hit["thumb"] = f"/v1/items/{hit['id']}/thumb"
        return found

    def encode_now(query: Any, asked: Asked) -> dict[str, Any]:
        found = service.searcher.encode(query)
        packed = found.code.packed[0].tobytes()
        return {
            "code": packed.hex(),
            "base64": base64.b64encode(packed).decode(),
            "n_bits": found.code.n_bits,
            **({} if (second := found.code.second) is None else {"second": second.packed[0].tobytes().hex()}),
            "timing_ms": {"decode": round(1000 * found.decode, 2), "encode": round(1000 * found.encode, 2)},
        }

    async def answer(request: Request, work: Callable[[Any, Asked], dict[str, Any]]) -> JSONResponse:
        async def by_image(upload: UploadFile, fields: dict[str, Any]) -> dict[str, Any]:
            asked = Asked.model_validate_strings(fields)
            asked.how_many(limits)  # check before anything is decoded
            return await service.on_image(service.uploads, upload, lambda query: work(query, asked))

        async def by_json(asked: Asked) -> dict[str, Any]:
            def query_and_work() -> dict[str, Any]:
                return work(asked.id if asked.code is None else service.searcher.parse_code(asked.code), asked)

            return await service.searches.run(query_and_work)

        if media_type(request) == FORM:
            found = await with_image(request, service, by_image)
        elif media_type(request) == "application/json":
            async with timeout(limits):
                found = await by_json(await from_json(request))
        else:
            wanted = 'send the image as multipart/form-data, in the field "image", or JSON with an id or a code'
            raise HTTPException(415, wanted)
        request.scope[REQUEST].timing = found["timing_ms"]
        service.metrics.stage_times(found["timing_ms"])
        return JSONResponse(found)

    @app.post(
        "/v1/search",
        summary="The nearest images to an image, an id or a code",
        **documented("k", "radius", "label", "histogram", "by"),
    )
    async def search(request: Request) -> JSONResponse:
        return await answer(request, search_now)

    @app.post("/v1/encode", summary="The code of an image", **documented())
    async def encode(request: Request) -> JSONResponse:
        return await answer(request, encode_now)


def _add_items(app: FastAPI, service: Service) -> None:
    searcher, thumbs = service.searcher, service.thumbs

    def items_now(now: Searcher, start: int, n: int) -> dict[str, Any]:
        found = now.index.page(start, n)
        return {"n": len(now.index), "items": [one | {"thumb": f"/v1/items/{one['id']}/thumb"} for one in found]}

    @app.get("/v1/items", summary="Some of the images of the index, in the order of ids", responses={422: PROBLEM})
    async def items(
        start: Annotated[int, Query(ge=0, le=MAX_ID, description="How many images to skip.")] = 0,
        n: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many images to return.")] = 100,
    ) -> JSONResponse:
        return JSONResponse(await service.searches.run(searcher.on_disk, lambda now: items_now(now, start, n)))

    @app.get("/v1/items/{id}", summary="Path, labels and code of an image", responses={404: PROBLEM, 422: PROBLEM})
    async def item(id: Id) -> JSONResponse:
        return JSONResponse(await service.searches.run(searcher.on_disk, lambda now: now.item(id)))

    def open_file(now: Searcher, id_: int) -> tuple[tuple[Any, ...], BinaryIO | None]:
        """Values that change with an image or its file, and the open file, None if it is missing."""
        path, added = now.item(id_)["path"], service.writer.folder
        try:
            if added is not None and Path(path).is_relative_to(added):
                found = file_of([os.fspath(added)], path)
            else:
                roots = [root for root in now.index.roots if added is None or not Path(root).is_relative_to(added)]
                found = file_of(roots, path, service.images)
            file: BinaryIO = found.open("rb") if isinstance(found, Path) else found
        except (OSError, KeyError, ValueError):
            return (path,), None
        if not isinstance(found, Path):
            return (path, sha256(found.getbuffer()).hexdigest()), file
        status = found.stat()
        if status.st_size > MAX_BYTES:
            file.close()
            return (path,), None
        return (path, found, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns), file

    @app.get(
        "/v1/items/{id}/thumb",
        summary="A thumbnail of the image; if its file is missing, a drawing that says so",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}},
            304: {"description": "Not changed since the given ETag."},
            404: {"content": {"image/svg+xml": {}}},
            422: PROBLEM,
        },
    )
    async def thumb(request: Request, id: Id, size: str = "small") -> Response:
        if size not in SIZES:
            raise HTTPException(422, "size must be small or large")
        key, file = await service.searches.run(searcher.on_disk, lambda now: open_file(now, id))
        key = (*key, SIZES[size])
        content = thumbs.get(key, b"")
        if file is not None:
            with file, suppress(UnreadableImage):
                if not content:
                    async with timeout(service.limits):
                        _, content = await service.thumbnailers.decode("thumbnail", file, SIZES[size], key[0])
        if not content:
            return Response(_page("gone.svg"), 404, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})
        with suppress(ValueError):  # larger than the whole cache (used by the event loop only)
            thumbs[key] = content
        tag = f'"{sha256(repr(key).encode()).hexdigest()[:32]}"'
        headers = {"Cache-Control": "private, no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="image/jpeg", headers=headers)


def _add_images(app: FastAPI, service: Service) -> None:
    writer, writes = service.writer, service.writes

    async def add_one(upload: UploadFile, fields: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        labels = Added.model_validate_strings(fields).split()
        return await service.on_image(writes, upload, lambda query: writer.add(upload.file, query, labels))

    @app.post("/v1/images", summary="Add an image; on disk before the answer", status_code=201, **documented_add())
    async def add(request: Request) -> JSONResponse:
        writer.require_folder()
        if media_type(request) != FORM:
            raise HTTPException(415, 'send the image as multipart/form-data, in the field "image"')
        item, is_new = await with_image(request, service, add_one)
        join = BackgroundTask(writes.run, writer.join_parts) if is_new else None
        address = {"Location": f"/v1/items/{item['id']}"}
        return JSONResponse(item, 201 if is_new else 200, address, background=join)

    @app.delete(
        "/v1/images/{id}",
        summary="Remove an image from the index, and its file if it was added here; on disk before the answer",
        status_code=204,
        responses={status: PROBLEM for status in (401, 403, 404, 422, 503, 507)},
    )
    async def remove(id: Id) -> Response:
        async with timeout(service.limits):
            await writes.run(writer.remove, id)
        return Response(status_code=204)


def _add_clicks(app: FastAPI, service: Service) -> None:
    @app.post(
        CLICKS,
        summary="Mark results as more or less like a query, for hashlens refine; on disk before the answer",
        status_code=201,
        **documented_clicks(),
    )
    async def click(request: Request) -> JSONResponse:
        if media_type(request) != "application/json":
            raise HTTPException(415, 'send JSON, such as {"query": 5, "more": [7], "less": [9]}')
        async with timeout(service.limits):
            given = Clicks.model_validate(await json_object(request))
            found = await service.writes.run(service.writer.click, given.query, given.more, given.less)
        return JSONResponse(found, 201)


def _add_jobs(app: FastAPI, service: Service) -> None:
    def add(job: Job) -> None:
        async def state() -> JSONResponse:
            return JSONResponse(await service.searches.run(job.state))

        async def start() -> JSONResponse:
            await service.searches.run(job.start)
            return JSONResponse(await service.searches.run(job.state), 202)

        path, what = f"/v1/{job.name}", f"{job.name} of the index"
        app.get(path, summary=f"The {what}, or the progress of finding them")(state)
        app.post(path, summary=f"Find the {what} in the background", status_code=202, responses={422: PROBLEM})(start)

    for job in service.jobs:
        add(job)


def _add_facts(app: FastAPI, service: Service, access: Access) -> None:
    searcher, limits = service.searcher, service.limits

    @lru_cache(1)
    def items(index: Catalog | Engine, n: int) -> dict[str, Any]:  # a server is the same object when it has more
        few = n <= 10_000_000  # beyond, listing the labels takes seconds
        return {"labels": index.labels() if few else [], "examples": index.examples()}

    def info_now(now: Searcher) -> dict[str, Any]:
        shown = {"max_upload": limits.max_upload, "max_pixels": limits.max_pixels, "max_k": limits.max_k}
        about = {"takes_images": now.takes_images, "limits": shown, "version": hashlens.__version__}
        return now.facts() | items(now.index, len(now.index)) | about | {"clicks": clicks(now)}

    def clicks(now: Searcher) -> dict[str, Any] | None:
        """The number of clicks and the command that learns from them; None if nobody can click."""
        index = now.index
        if not access.takes_clicks or now.engine is not None or not isinstance(index, IndexFolder):
            return None
        general = (built_with(index.path, index.model) or index.model)["name"] == GENERAL.name
        found = general and index.path.is_relative_to(cache_dir())  # show the folder of the images, which users know
        what = (index.facts.get("source") if found else None) or index.path
        return {"n": len(read_clicks(index.path)), "command": f"hashlens refine {quoted(what)}"}

    @app.get("/v1/info", summary="What the index contains, and the limits")
    async def info() -> JSONResponse:
        return JSONResponse(await service.searches.run(searcher.on_disk, info_now))

    @app.get("/healthz", summary="Whether the server is alive")
    async def healthz() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/readyz", summary="Whether a search is answered within a second", responses={503: PROBLEM})
    async def readyz() -> dict[str, bool]:
        await service.require_ready()
        return {"ready": True}

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def read_metrics() -> PlainTextResponse:
        return PlainTextResponse(service.metrics.text(searcher.facts()))


def _add_pages(app: FastAPI) -> None:
    files = {path: (_page(name), kind) for path, (name, kind) in FILES.items()}

    async def page(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    for path in FILES:
        app.get(path, include_in_schema=False)(page)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        template = jinja2.Environment(autoescape=True).from_string(_page("docs.html.j2").decode())
        return HTMLResponse(
            template.render(paths=app.openapi()["paths"], version=hashlens.__version__, base=request.base_url)
        )


def _page(name: str) -> bytes:
    return resources.files("hashlens.server").joinpath("page", name).read_bytes()
