"""A small OpenID Connect provider with real keys: discovery, JWKS, the device authorization grant (RFC 8628), and the
authorization code grant with PKCE (RFC 7636) on a page with one button, as a person who is signed in there already."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "gpu-platform"
AUDIENCE = "gpu-platform"


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Provider:
    """``url`` is set once it is served."""

    url: str = ""
    keys: list[RSAKey] = field(default_factory=lambda: [new_key("first")])
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "ada", "groups": ["ml"]})
    lives_s: float = 300.0
    confirmed: set[str] = field(default_factory=set)
    """User codes that a person confirmed."""
    codes: dict[str, str] = field(default_factory=dict)
    refresh_tokens: set[str] = field(default_factory=set)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    """Code -> what the page that asked for it said."""
    returns_to: set[str] = field(default_factory=set)
    """Addresses to which browsers may be sent back, as they are registered."""
    refuses: str = ""
    """The error with which pages are sent back, instead of a code."""
    revoked: list[str] = field(default_factory=list)
    says: dict[str, Any] = field(default_factory=dict)
    """What its discovery document says instead."""
    device_says: dict[str, Any] = field(default_factory=dict)
    """What it answers to the device authorization grant instead. None: it leaves that out."""
    tokens_live: Any = ...
    """What it says of how long tokens live, instead of ``lives_s``. None: nothing."""
    more_keys: list[Any] = field(default_factory=list)
    """What stands beside its keys."""
    sends_to: str = ""
    """An address to which it redirects whoever asks for its keys."""
    away: bool = False
    """True: it answers tokens with 503."""
    keys_away: bool = False
    """True: it answers keys with 503."""
    keys_trickle: bytes = b""
    """What comes again and again, before the keys that never come."""
    trickle_s: float = 0.0
    hold: asyncio.Event = field(default_factory=_set)
    """While it is clear, tokens are asked for in vain: the answer comes when it is set."""
    asked_for_keys: int = 0
    asked_for_tokens: list[str] = field(default_factory=list)

    def token(self, key: RSAKey | None = None, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is signed by the newest key. A claim that is None is left out."""
        key = key or self.keys[-1]
        now = int(time.time())
        whole = {"iss": self.url, "aud": AUDIENCE, "iat": now, "exp": now + int(self.lives_s), **self.claims, **claims}
        said = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(header or {"alg": "RS256", "kid": key.kid}, said, key)

    def rotate(self) -> None:
        """Sign with a new key from now on, and withdraw the old one."""
        self.keys = [new_key(secrets.token_hex(4))]

    def application(self) -> FastAPI:
        app = FastAPI()
        self._serve_pages(app)

        @app.get("/.well-known/openid-configuration")
        def discovery() -> dict[str, Any]:
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "device_authorization_endpoint": f"{self.url}/device",
                "token_endpoint": f"{self.url}/token",
                "authorization_endpoint": f"{self.url}/authorize",
                "revocation_endpoint": f"{self.url}/revoke",
                "end_session_endpoint": f"{self.url}/logout",
                **self.says,
            }

        @app.get("/keys")
        def keys() -> Response:
            return self._keys()

        @app.post("/device")
        async def device(request: Request) -> Response:
            form = await _form(request)
            if form["client_id"] != CLIENT or "openid" not in form["scope"]:
                return JSONResponse({"error": "invalid_client"}, 401)
            code, shown = secrets.token_hex(8), secrets.token_hex(3).upper()
            self.codes[code] = shown
            said = {
                "device_code": code,
                "user_code": shown,
                "verification_uri": f"{self.url}/activate",
                "expires_in": 10,
                "interval": 0.1,
                **self.device_says,
            }
            return _json({name: value for name, value in said.items() if value is not None})

        @app.post("/token")
        async def token(request: Request) -> Response:
            form = await _form(request)
            grant_type, client_id = form["grant_type"], form["client_id"]
            device_code, refresh_token = form.get("device_code", ""), form.get("refresh_token", "")
            self.asked_for_tokens.append(grant_type)
            await self.hold.wait()
            if self.away:
                return JSONResponse({"error": "temporarily_unavailable"}, 503)
            if client_id != CLIENT:
                return JSONResponse({"error": "invalid_client"}, 401)
            if grant_type == "refresh_token":
                return self._refreshed(refresh_token)
            if grant_type == "authorization_code":
                return self._exchanged(form)
            shown = self.codes.get(device_code)
            if shown is None:
                return JSONResponse({"error": "invalid_grant"}, 400)
            if shown not in self.confirmed:
                return JSONResponse({"error": "authorization_pending"}, 400)
            del self.codes[device_code]
            return _json(self._given())

        return app

    def _serve_pages(self, app: FastAPI) -> None:
        """What browsers see, and what pages ask when somebody signs out."""

        @app.get("/authorize")
        def authorize(request: Request) -> Response:
            asked = dict(request.query_params)
            if asked["redirect_uri"] not in self.returns_to or asked["client_id"] != CLIENT:
                return HTMLResponse("<p>This address is not registered.</p>", 400)
            assert asked["response_type"] == "code"
            assert asked["code_challenge_method"] == "S256"
            answer = {"state": asked["state"], "iss": self.url}
            if self.refuses:
                answer["error"] = self.refuses
            else:
                answer["code"] = code = secrets.token_hex(8)
                self.pages[code] = asked
            back = f"{asked['redirect_uri']}?{urlencode(answer)}"
            return HTMLResponse(f"<a href='{back.replace('&', '&amp;')}'>Go on as {self.claims['sub']}</a>")

        @app.post("/revoke")
        async def revoke(request: Request) -> Response:
            token = (await _form(request))["token"]
            self.revoked.append(token)
            self.refresh_tokens.discard(token)
            return Response(status_code=200)

        @app.get("/logout")
        def logout() -> Response:
            return RedirectResponse("/signed-out")

    def _keys(self) -> Response:
        self.asked_for_keys += 1
        if self.keys_away:
            return JSONResponse({}, 503)
        if self.sends_to:
            return RedirectResponse(self.sends_to)
        if self.keys_trickle:
            return StreamingResponse(self._trickle(), media_type="application/json")
        return JSONResponse({"keys": [*self.more_keys, *(key.as_dict(private=False) for key in self.keys)]})

    async def _trickle(self) -> AsyncIterator[bytes]:
        while self.keys_trickle:
            yield self.keys_trickle
            await asyncio.sleep(self.trickle_s)

    def _refreshed(self, refresh_token: str) -> Response:
        if refresh_token not in self.refresh_tokens:
            return JSONResponse({"error": "invalid_grant", "error_description": "used before"}, 400)
        self.refresh_tokens.remove(refresh_token)
        return _json(self._given())

    def _exchanged(self, form: dict[str, str]) -> Response:
        asked = self.pages.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proved = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != proved or asked["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant", "error_description": "no such code"}, 400)
        return _json(self._given())

    def _given(self) -> dict[str, Any]:
        refresh = secrets.token_hex(16)
        self.refresh_tokens.add(refresh)
        lives = self.lives_s if self.tokens_live is ... else self.tokens_live
        return {
            "access_token": self.token(),
            "token_type": "Bearer",
            **({} if lives is None else {"expires_in": lives}),
            "refresh_token": refresh,
        }


def _json(said: dict[str, Any]) -> Response:
    """As it is, also with what JSON does not have."""
    return Response(json.dumps(said), media_type="application/json")


async def _form(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode()))
