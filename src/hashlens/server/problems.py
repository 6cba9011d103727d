"""Problems: errors in, answers as RFC 9457 problem+json out, one sentence with the cause and what to do."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from hashlens.errors import Damaged, HashlensError, MismatchError, OtherModel, StorageError, Unreachable, UsageError
from hashlens.search import EmptyIndex, NoSuchImage, UnreadableImage

STATUS: list[tuple[type[HashlensError], int]] = [  # the first match counts
    (UnreadableImage, 400),
    (NoSuchImage, 404),
    (EmptyIndex, 409),
    (UsageError, 422),
    (OtherModel, 503),
    (MismatchError, 422),
    (Unreachable, 503),
    (StorageError, 507),
    (Damaged, 503),
]

RETRY_SECONDS = "5"
MEDIA_TYPE = "application/problem+json"
FIELDS = {name: {"type": "string"} for name in ("type", "title", "detail")} | {"status": {"type": "integer"}}
SCHEMA = {"type": "object", "required": list(FIELDS), "properties": FIELDS}
PROBLEM: dict[str, Any] = {"description": "A problem, in one sentence.", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)


def printable(text: str, most: int = 100) -> str:
    """Text from a client, shortened and safe to quote in a message."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])


def explain_errors(app: FastAPI) -> None:
    """Answer every error that a handler raises as a problem."""

    @app.exception_handler(HashlensError)
    async def ours(request: Request, error: HashlensError) -> JSONResponse:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
        if status >= 500:
            logging.getLogger("hashlens").error("%s", error.message)
        return problem(status, error.message, {"Retry-After": RETRY_SECONDS} if status == 503 else None)

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: ValidationError | RequestValidationError) -> JSONResponse:
        first: Any = error.errors()[0]
        place = printable(".".join(str(part) for part in first["loc"])) or "the request"
        return problem(422, f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}; see /docs")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        sentences = {
            400: f"the request cannot be read ({error.detail.rstrip('.')}); see /docs",
            404: "address not found; see /docs",
            405: "this address does not support that method",
        }
        return problem(error.status_code, sentences.get(error.status_code, error.detail), error.headers)
