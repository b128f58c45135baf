"""A small OpenID Connect provider with real keys: discovery, JWKS, and the device authorization grant (RFC 8628)."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "gpu-platform"
AUDIENCE = "gpu-platform"


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


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

        @app.get("/.well-known/openid-configuration")
        def discovery() -> dict[str, str]:
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "device_authorization_endpoint": f"{self.url}/device",
                "token_endpoint": f"{self.url}/token",
            }

        @app.get("/keys")
        def keys() -> dict[str, Any]:
            self.asked_for_keys += 1
            return {"keys": [key.as_dict(private=False) for key in self.keys]}

        @app.post("/device")
        async def device(request: Request) -> Response:
            form = await _form(request)
            if form["client_id"] != CLIENT or "openid" not in form["scope"]:
                return JSONResponse({"error": "invalid_client"}, 401)
            code, shown = secrets.token_hex(8), secrets.token_hex(3).upper()
            self.codes[code] = shown
            return JSONResponse(
                {
                    "device_code": code,
                    "user_code": shown,
                    "verification_uri": f"{self.url}/activate",
                    "expires_in": 10,
                    "interval": 0.1,
                }
            )

        @app.post("/token")
        async def token(request: Request) -> Response:
            form = await _form(request)
            grant_type, client_id = form["grant_type"], form["client_id"]
            device_code, refresh_token = form.get("device_code", ""), form.get("refresh_token", "")
            self.asked_for_tokens.append(grant_type)
            if client_id != CLIENT:
                return JSONResponse({"error": "invalid_client"}, 401)
            if grant_type == "refresh_token":
                if refresh_token not in self.refresh_tokens:
                    return JSONResponse({"error": "invalid_grant", "error_description": "used before"}, 400)
                self.refresh_tokens.remove(refresh_token)
                return JSONResponse(self._given())
            shown = self.codes.get(device_code)
            if shown is None:
                return JSONResponse({"error": "invalid_grant"}, 400)
            if shown not in self.confirmed:
                return JSONResponse({"error": "authorization_pending"}, 400)
            del self.codes[device_code]
            return JSONResponse(self._given())

        return app

    def _given(self) -> dict[str, Any]:
        refresh = secrets.token_hex(16)
        self.refresh_tokens.add(refresh)
        return {
            "access_token": self.token(),
            "token_type": "Bearer",
            "expires_in": self.lives_s,
            "refresh_token": refresh,
        }


async def _form(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode()))
