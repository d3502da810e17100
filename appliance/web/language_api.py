"""In which language a browser is answered: its texts for the scripts, and the choice that it keeps."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from appliance.web import texts
from appliance.web.problems import Problem

YEAR_S = 365 * 86400  # of the cookie; browsers cut it to 400 days
router = APIRouter()


class LanguageChoice(BaseModel):
    """The language that pages and answers are wanted in; '': what the browser asks for, else the site's."""

    language: str = Field(max_length=8)


class LanguageKept(BaseModel):
    """The choice as it was kept, in a cookie of this browser."""

    language: str


@router.get("/static/texts/{language}.js", include_in_schema=False)
def script_texts(language: str) -> Response:
    """Return the texts of the scripts, in a language. The page requests it with the digest of its content."""
    if language not in texts.catalogues():
        raise Problem(404, "There is no such language.")
    script, digest = texts.script_of(language)
    kept = {"Cache-Control": f"max-age={YEAR_S}, immutable", "ETag": f'"{digest}"'}
    return Response(script, media_type="text/javascript", headers=kept)


@router.post("/language", tags=["language"], response_model=LanguageKept)
def choose_language(choice: LanguageChoice) -> JSONResponse:
    """Answer this browser in a language from now on."""
    if choice.language and choice.language not in texts.catalogues():
        raise Problem(422, f"language: choose one of {', '.join(texts.catalogues())}, or nothing.")
    answer = JSONResponse({"language": choice.language})
    same_site: Literal["lax"] = "lax"
    if choice.language:
        answer.set_cookie(texts.COOKIE, choice.language, max_age=YEAR_S, httponly=True, samesite=same_site)
    else:
        answer.delete_cookie(texts.COOKIE)
    return answer
