"""Digests of images in a registry, computed from their manifests.

Source: the OCI distribution specification (pulling manifests) and the token authentication of the distribution
project. As in container engines, registries on loopback addresses are used without TLS.
"""

from __future__ import annotations

import hashlib
import json
import re
from urllib.parse import urlencode

from ci_build.images.local import is_loopback
from core.errors import InputError
from core.http.client import Client

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LARGEST = 4 << 20
"""Maximal size of a manifest (distribution specification)."""
_UNAUTHORISED, _ABSENT = _NO_MANIFEST = 401, 404


def fetch_digest(registry: str, repository: str, reference: str, client: Client) -> str:
    """Return the digest, `sha256:…`, of a tag or digest in a registry.

    Args:
        registry: host with optional port and path prefix.

    Raises:
        InputError: the registry has no such image, or its manifest does not match its digest.
    """
    host, _, path = registry.partition("/")
    scheme = "http" if is_loopback(registry) else "https"
    name = "/".join(part for part in (path, repository) if part)
    url = f"{scheme}://{host}/v2/{name}/manifests/{reference}"
    headers = {"Accept": ", ".join(_MANIFESTS)}
    answer = client.fetch(url, headers=headers, accept=_NO_MANIFEST, limit=_LARGEST)
    if answer.status == _UNAUTHORISED:
        headers["Authorization"] = f"Bearer {_token(client, answer.headers.get('www-authenticate', ''), host)}"
        answer = client.fetch(url, headers=headers, accept=_NO_MANIFEST, limit=_LARGEST)
    if (status := answer.status) != 200:
        problems = {_ABSENT: "has no such image", _UNAUTHORISED: "rejected the request"}
        problem = problems.get(status, f"returned {status}")
        raise InputError(f"{registry}/{repository}, {reference}: the registry {problem}.", hint="Check name and tag.")
    digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    claimed = {
        answer.headers.get("docker-content-digest", digest),
        reference if reference.startswith("sha256:") else digest,
    }
    if claimed != {digest}:
        raise InputError(
            f"{registry}/{repository}, {reference}: the manifest has digest {digest}.",
            hint="Check proxies: the manifest was changed on its way.",
        )
    return digest


def _token(client: Client, challenge: str, host: str) -> str:
    """Return an anonymous token from the realm that the registry names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    allowed = ("http://", "https://") if is_loopback(host) else ("https://",)
    if not challenge.lower().startswith("bearer ") or not realm.startswith(allowed):
        raise InputError(f"{host} rejected anonymous access.", hint="Use a registry that allows anonymous reads.")
    query = urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    answer = client.fetch(f"{realm}?{query}", accept=_NO_MANIFEST, limit=_LARGEST)
    try:
        granted = json.loads(answer.body)
        return str(granted.get("token") or granted["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{realm} returned {answer.status} without a token.", hint="Check the name of the registry."
        ) from error
