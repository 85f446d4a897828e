"""What a registry says of a tag: its digest, computed from the bytes and not taken on trust.

Source: the OCI distribution specification (pulling manifests) and the token authentication of the distribution
project; a registry on loopback speaks without TLS, as engines have it, every other one with it.
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
"""Registries accept no larger manifests (distribution specification)."""
_UNAUTHORISED, _ABSENT = _NO_MANIFEST = 401, 404


def fetch_digest(registry: str, repository: str, reference: str, client: Client) -> str:
    """The digest of what a registry calls by a tag or a digest, `sha256:…`.

    Args:
        registry: host, port where it has one, and the path below which its repositories are.

    Raises:
        InputError: it has no such image, or its answer is not what it says it is.
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
        said = {_ABSENT: "has no such image", _UNAUTHORISED: "does not let us in"}.get(status, f"answers {status}")
        raise InputError(f"{registry}/{repository}, {reference}: the registry {said}.", hint="Check name and tag.")
    digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    claimed = {
        answer.headers.get("docker-content-digest", digest),
        reference if reference.startswith("sha256:") else digest,
    }
    if claimed != {digest}:
        raise InputError(
            f"{registry}/{repository}, {reference}: the registry gave a manifest with digest {digest}.",
            hint="Something between here and the registry changes what it says.",
        )
    return digest


def _token(client: Client, challenge: str, host: str) -> str:
    """A token for anybody, from where the registry says."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    allowed = ("http://", "https://") if is_loopback(host) else ("https://",)
    if not challenge.lower().startswith("bearer ") or not realm.startswith(allowed):
        raise InputError(f"{host} does not let us in.", hint="Use a registry that may be read by anybody.")
    query = urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    answer = client.fetch(f"{realm}?{query}", accept=_NO_MANIFEST, limit=_LARGEST)
    try:
        granted = json.loads(answer.body)
        return str(granted.get("token") or granted["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{realm} gives no token, but {answer.status}.", hint="Check the registry's name.") from error
