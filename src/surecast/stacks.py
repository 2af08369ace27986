"""What rides on what, and what stands side by side: the machines that make up a node."""

from collections import Counter
from random import Random

from surecast.core.compose import Composition, compose
from surecast.core.scopes import Scope
from surecast.core.types import Disk
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.replica import Replica
from surecast.protocols.sprinkler.config import InquirerConfig, ProxyConfig, PublisherConfig
from surecast.protocols.sprinkler.inquirer import Inquirer
from surecast.protocols.sprinkler.proxy import Proxy
from surecast.protocols.sprinkler.publisher import Publisher

__all__ = ["client_desk", "region_replica"]


def region_replica(
    chain: ChainConfig,
    proxy: ProxyConfig,
    disk: Disk,
    rng: Random,
    counters: Counter[str] | None = None,
    *,
    replica_type: type[Replica] = Replica,
    proxy_type: type[Proxy] = Proxy,
) -> Composition:
    """One replica of a region: its chain below, Sprinkler's proxy above.

    The types are arguments so that tests can take a rule out and see that it is missed.
    """
    return compose(
        {
            "chain": replica_type(chain, Scope(disk, "chain"), rng, counters),
            "sprinkler": proxy_type(proxy, Scope(disk, "sprinkler", ["chain"]), rng, counters),
        }
    )


def client_desk(
    publisher: PublisherConfig,
    inquirer: InquirerConfig,
    rng: Random,
    counters: Counter[str] | None = None,
) -> Composition:
    """What a client does besides reading: it publishes, and asks its region questions."""
    return compose(
        {"publisher": Publisher(publisher, rng, counters), "inquirer": Inquirer(inquirer, counters)}
    )
