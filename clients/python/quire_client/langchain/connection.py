"""What every class of this package needs to reach a service."""

from __future__ import annotations

from typing import Any

from langchain_core.utils import secret_from_env
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from .._exchange import RetryPolicy
from ..async_client import AsyncQuireClient
from ..client import QuireClient


class Connection(BaseModel):
    """Address, key and namespace; the clients are made when first used."""

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    base_url: str | None = None
    """Address of the service; without it QUIRE_SERVER, or http://127.0.0.1:8080."""
    api_key: SecretStr | None = Field(
        default_factory=secret_from_env("QUIRE_API_KEY", default=None)
    )
    """API key; without it QUIRE_API_KEY."""
    namespace: str | None = None
    """Namespace of the documents; without it the key's default."""
    timeout: float = 60.0
    """Seconds without a byte after which a reply counts as lost."""
    max_retries: int = 4
    """Retries of what can be sent again without harm."""

    _client: QuireClient | None = PrivateAttr(default=None)
    _async_client: AsyncQuireClient | None = PrivateAttr(default=None)

    def _arguments(self) -> dict[str, Any]:
        return {
            "api_key": self.api_key.get_secret_value() if self.api_key else None,
            "namespace": self.namespace,
            "timeout": self.timeout,
            "retry": RetryPolicy(max_retries=self.max_retries),
        }

    @property
    def client(self) -> QuireClient:
        """The client behind this object."""
        if self._client is None:
            self._client = QuireClient(self.base_url, **self._arguments())
        return self._client

    @property
    def async_client(self) -> AsyncQuireClient:
        """The asynchronous client behind this object;
        it belongs to the event loop that uses it first."""
        if self._async_client is None:
            self._async_client = AsyncQuireClient(self.base_url, **self._arguments())
        return self._async_client
