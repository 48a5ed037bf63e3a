"""The faults of cluster_rounds.py: which there are, how they are made, and what they did."""

import random
import signal
import time
from collections import Counter

from backends import RedisCluster, forget_clock
from replica import LEASE_MS, Failed
from service import StartFailed

LATE_S = 0.2
MID_REQUEST = "kill a service during a request"
AT_ONCE = (1, 2, 3, 3)  # how many faults a round has
# What the ways to the servers count: (member of a way, where to) -> how it is counted.
WAYS = {
    ("held", "database"): "pieces that a silent way to the database held back",
    ("held", "redis"): "pieces that a silent way to Redis held back",
    ("held", "s3"): "pieces that a silent way to S3 held back",
    ("late", "redis"): "answers of Redis that came 200 ms late",
    ("late", "s3"): "answers of S3 that came 200 ms late",
    ("cuts", "redis"): "answers of Redis that were cut",
}
VALUES, OBJECTS = "values damaged", "objects of S3 damaged"
REMOVED = "keys removed for want of memory"
UNWRITTEN = "writes refused for want of memory"
REFUSED, BODIES = "requests to S3 refused", "values from S3 damaged"
FOLLOWED = "primaries of Redis that a replica followed after their end"
HANDED = "primaries of Redis that a replica followed while they ran"
WRONG_REDIS = "contexts with wrong bytes from Redis"
WRONG_S3 = "contexts with wrong bytes from S3"
OFTEN = 4  # faults after which something must have been counted that they do


class Faults:
    def __init__(self, cluster):
        self.cluster = cluster
        self.options = cluster.options
        # name -> how often it is made, how, and what counts that it did something
        self.all = self.of_services() | self.of_database() | self.of_redis()
        if cluster.s3:
            self.all |= self.of_s3()
        parts = [p.strip() for p in self.options.faults.split(",")]
        self.kinds = [k for k in self.all if any(p in k for p in parts)]

    def of_services(self):
        kinds = {
            "kill a service": (4, lambda _, replica: replica.kill()),
            MID_REQUEST: (3, self.kill_mid_request),
            "pause a service": (2, self.pause_service),
            "pause a service past its lease": (3, self.pause_past_lease),
            "stop a service": (1, lambda _, replica: replica.stop(signal.SIGTERM)),
            "part a service from all servers": (
                2, lambda rng, replica: self.part(rng, replica.ways())),
        }  # fmt: skip
        if self.cluster.wrong_s:
            kinds["set a clock"] = (3, self.set_clock)
        return kinds

    def of_database(self):
        return {
            "kill the database": (2, self.kill_database),
            "pause the database": (1, self.pause_database),
            "part a service from the database": (
                2, lambda rng, replica: self.part(rng, [replica.to_database]),
                WAYS["held", "database"]),
            "a slow way to the database": (
                2, lambda _, replica: replica.to_database.make(delay_s=LATE_S)),
            "cut connections to the database": (2, self.cut_database),
        }  # fmt: skip

    def of_redis(self):
        redis = self.cluster.redis
        return {
            "kill a primary of Redis": (2, lambda rng, _: redis.kill_primary(rng)),
            "fail over a primary of Redis": (2, self.fail_over, FOLLOWED),
            "hand over a primary of Redis": (1, self.hand_over, HANDED),
            "pause a node of Redis": (
                1, lambda rng, _: rng.choice(redis.nodes).signal(signal.SIGSTOP)),
            "part a service from Redis": (
                2, lambda rng, replica: self.part(rng, [replica.to_redis]), WAYS["held", "redis"]),
            "silence of Redis": (
                2, lambda *_: self.everywhere("redis", silent=True), WAYS["held", "redis"]),
            "Redis answers 200 ms late": (
                2, lambda *_: self.everywhere("redis", latency_s=LATE_S), WAYS["late", "redis"]),
            "cut answers of Redis": (
                2, lambda rng, _: self.everywhere("redis", cut_after=rng.choice((1, 9000))),
                WAYS["cuts", "redis"]),
            "damage values in Redis": (4, self.damage_redis, VALUES, WRONG_REDIS),
            "empty Redis": (1, lambda *_: redis.empty()),
            "remove keys of Redis for want of memory": (
                2, lambda rng, _: redis.limit(RedisCluster.POLICY, rng.uniform(0.5, 1)), REMOVED),
            "refuse writes to Redis for want of memory": (
                2, lambda rng, _: redis.limit("noeviction", rng.uniform(0.5, 1)), UNWRITTEN),
        }  # fmt: skip

    def of_s3(self):
        s3 = self.cluster.s3
        return {
            "kill S3": (1, lambda *_: s3.kill()),
            "part a service from S3": (
                2, lambda rng, replica: self.part(rng, [replica.to_s3]), WAYS["held", "s3"]),
            "silence of S3": (2, lambda *_: self.everywhere("s3", silent=True), WAYS["held", "s3"]),
            "S3 answers 200 ms late": (
                2, lambda *_: self.everywhere("s3", latency_s=LATE_S), WAYS["late", "s3"]),
            "refuse requests to S3": (
                3, lambda rng, _: s3.proxy.make(refused_share=rng.choice((0.3, 1))), REFUSED),
            "damage values from S3": (
                3, self.damage_bodies, BODIES, WRONG_S3),
            "damage objects in S3": (3, self.damage_s3, OBJECTS, WRONG_S3),
        }  # fmt: skip

    # ---- which a round has ----

    def planned(self, number):
        """Returns the faults of a round. They are drawn from shuffled decks that have each kind as
        often as its weight says, so that none is left to chance for longer than a deck."""
        deck = [k for k in self.kinds for _ in range(self.all[k][0])]
        if not deck:
            raise Failed(f"no fault has {self.options.faults!r} in its name")
        seed, sizes = self.options.seed, []
        for i in range(1, number + 1):
            sizes.append(random.Random(f"{seed}/{i}/faults").choice(AT_ONCE))
        out = []
        for place in range(sum(sizes[:-1]), sum(sizes)):
            which, at = divmod(place, len(deck))
            shuffled = random.Random(f"{seed}/deck/{which}").sample(deck, len(deck))
            out.append(shuffled[at])
        return out

    def make(self, kind, rng):
        """Makes a fault that lasts until heal(), or ends by itself."""
        try:
            self.all[kind][1](rng, rng.choice(self.cluster.replicas))
        except (Failed, StartFailed, RuntimeError) as error:
            self.cluster.expected.problem(f"{kind}: {error}")

    def without_effect(self):
        """Returns what was never counted although faults were made often that do it."""
        counts, made = self.cluster.counts, Counter()
        for kind, (_, _, *effects) in self.all.items():
            for effect in effects:
                made[effect] += counts[kind]
        return sorted(e for e, number in made.items() if number >= OFTEN and not counts[e])

    # ---- how they are made ----

    def kill_mid_request(self, rng, replica):
        end = time.monotonic() + 2
        asked = set()
        while not asked and time.monotonic() < end:
            time.sleep(0.001)
            asked = {w.client.under_way for w in self.cluster.writers} - {None}
        time.sleep(rng.uniform(0, 0.01))
        (self.cluster.replicas[min(asked)] if asked else replica).kill()

    def pause_service(self, rng, replica, seconds=None):
        replica.signal(signal.SIGSTOP)
        time.sleep(seconds or rng.uniform(0.2, 1.5))
        replica.signal(signal.SIGCONT)

    def pause_past_lease(self, rng, replica):
        self.pause_service(rng, replica, LEASE_MS / 1000 * 1.7)

    def set_clock(self, rng, replica):
        others = [c for c in self.cluster.clocks() if c != replica.wrong_s]
        replica.restart(rng.choice((signal.SIGTERM, signal.SIGKILL)), rng.choice(others))

    def kill_database(self, rng, _):
        self.cluster.database.kill()
        time.sleep(rng.uniform(0, 1.5))
        self.cluster.database.start()

    def pause_database(self, rng, _):
        self.cluster.database.signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.5, 2))
        self.cluster.database.signal(signal.SIGCONT)

    def cut_database(self, rng, _):
        for _ in range(5):
            rng.choice(self.cluster.replicas).to_database.cut()
            time.sleep(rng.uniform(0.05, 0.4))

    def part(self, rng, ways):
        """Lets nothing pass. Connections stay, and then go on or end."""
        for way in ways:
            way.make(silent=True)
        time.sleep(rng.uniform(1, 4))
        for way in ways:
            way.make(silent=False)
        if rng.random() < 0.5:
            for way in ways:
                way.cut()

    def everywhere(self, where, **faults):
        """Does so with the ways of all services."""
        for replica in self.cluster.replicas:
            getattr(replica, "to_" + where).make(**faults)

    def fail_over(self, rng, _):
        self.cluster.count(FOLLOWED, self.cluster.redis.fail_over(rng))

    def hand_over(self, rng, _):
        self.cluster.count(HANDED, self.cluster.redis.hand_over(rng))

    def damage_redis(self, rng, _):
        self.count_damages(VALUES, "in Redis", self.cluster.redis.damage(rng))

    def damage_bodies(self, rng, _):
        self.cluster.s3.proxy.make(damaged_share=rng.choice((0.3, 1)))
        self.cluster.redis.empty()  # else it would be asked alone

    def damage_s3(self, rng, _):
        self.cluster.redis.empty()  # else it would be asked alone
        self.count_damages(OBJECTS, "in S3", self.cluster.s3.damage(rng))

    def count_damages(self, what, where, made):
        self.cluster.count(what, sum(made.values()))
        for how, number in made.items():
            self.cluster.count(f"values {how} {where}", number)

    # ---- their end ----

    def heal(self, rng):
        cluster = self.cluster
        cluster.database.signal(signal.SIGCONT)
        self.read_effects()
        cluster.redis.heal()
        cluster.redis.lift_limit()
        if cluster.s3:
            cluster.s3.proxy.heal()
            if cluster.s3.process.poll() is not None:
                cluster.s3.start()
        for replica in cluster.replicas:
            for way in replica.ways():
                way.heal()
            replica.signal(signal.SIGCONT)
        for replica in cluster.replicas:
            if not replica.is_up():
                forget_clock(replica.service.process.pid)
                replica.start(rng.choice(cluster.clocks()))

    def read_effects(self):
        """Counts what the servers and the ways to them know of the faults of the round."""
        cluster, counts = self.cluster, self.cluster.counts
        counts[REMOVED] += cluster.redis.evicted()
        counts[UNWRITTEN] += cluster.redis.refused()
        if cluster.s3:
            counts[REFUSED] = cluster.s3.proxy.refused
            counts[BODIES] = cluster.s3.proxy.damaged
        for (member, where), what in WAYS.items():
            ways = [getattr(replica, "to_" + where) for replica in cluster.replicas]
            counts[what] = sum(getattr(way, member) for way in ways if way)
