"""What logs and messages say of the database has no password in it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.store import Store

_SECRET = st.text(st.sampled_from("s3cret%:/@?&=#[] "), min_size=1, max_size=12).map(lambda text: f"s3cret{text}")


@given(_SECRET, st.sampled_from(["password", "sslpassword", "sslkey", "oauth_client_secret", "scram_client_key"]))
def test_no_password_of_an_address_is_shown(secret: str, name: str) -> None:
    word = quote(secret, safe="")
    store = Store(f"postgresql://ada:{word}@db.example:5432/platform?{name}={word}&sslmode=verify-full&passfile=/etc/p")
    try:
        assert "s3cret" not in store.shown_url
        for said in ("ada:***@db.example:5432/platform", f"{name}=hidden", "sslmode=verify-full", "passfile="):
            assert said in store.shown_url
    finally:
        store.close()


@pytest.mark.parametrize("url", ["s3cret", "mysql://ada:s3cret@h/db", "postgresql://ada:s3cret@h:x/db"])
def test_a_wrong_address_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Store(url)
    assert "s3cret" not in refused.value.message
