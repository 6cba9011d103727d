"""Limits of the server: what clients can send and ask for; the options of `hashlens serve` set those of `Limits`."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException

from hashlens.data.images import MAX_PIXELS

MAX_ID = 2**63 - 1
MAX_TEXT = 65_536  # bytes of a request besides its image
MAX_FIELD = 20_000  # bytes of a field of a form, or characters of a code
MAX_FIELDS = 8
CONNECTIONS = 1_000
SHUTDOWN_SECONDS = 10  # for requests in progress


@dataclass(frozen=True)
class Limits:
    max_upload: int = 20_000_000  # bytes per image
    max_pixels: int = MAX_PIXELS  # per image, by its header
    max_k: int = 1_000  # results
    timeout: float = 30.0  # seconds per request, its upload included
    max_waiting: int = 64  # requests that wait for a thread
    thumbnail_cache: int = 64_000_000  # bytes

    def require_body(self, n_bytes: int, with_image: bool) -> None:
        """Refuse a body of more bytes than allowed."""
        if n_bytes > MAX_TEXT + (self.max_upload if with_image else 0):
            raise self.too_large(with_image)

    def too_large(self, with_image: bool = True) -> HTTPException:
        found = f"the image is too large; the limit is {self.max_upload / 1e6:g} MB (server option --max-upload)"
        if not with_image:
            found = f"the request is too large; without an image the limit is {MAX_TEXT:,} bytes"
        return HTTPException(413, found, {"Connection": "close"})


USUAL = Limits()
