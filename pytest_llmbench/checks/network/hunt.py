"""The hunt for the slow node: a tournament on real nodes, without silent ones, and its report."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet
from pytest_llmbench.checks.findings import Bounds, SharedKind, judge_by_physics
from pytest_llmbench.checks.machine import Machines, domain_of
from pytest_llmbench.checks.network.boundaries import (
    boundary_rates,
    find_bad_links,
    find_bad_places,
    floors_of,
    place_players,
)
from pytest_llmbench.checks.network.groups import (
    GroupFault,
    GroupResult,
    MeasuredGroups,
    NetworkKind,
    RankGroup,
    TournamentOptions,
    finding,
    note_missing_reference,
)
from pytest_llmbench.checks.network.tournament import Game, PairVerdict, Rounds, is_slow, judge, schedule
from pytest_llmbench.checks.transport import GLOO, wire
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.topology import Places, Segment
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.judging.outliers import outliers
from pytest_llmbench.judging.physics import PhysicsBound, PhysicsResult, expect_from_pairs, oversubscribed

_ATTEMPTS = 3
_MOST_NAMED = 8
ACROSS, _DOMAIN = "across_busbw", "NVLink domain"
_REPLACE = "take the node out; check its cables, ports, NICs and their drivers against a good node"
# Kind, severity and action for a node, by the fault that prevented a rate; None for a slow one.
KINDS: Mapping[GroupFault | None, tuple[NetworkKind | SharedKind, Severity, str]] = {
    None: ("slow_node", Severity.ISOLATE, _REPLACE),
    "error": ("failing_node", Severity.ISOLATE, _REPLACE),
    "wrong_values": ("wrong_values", Severity.ISOLATE, "take the node out: it computes or transmits wrong numbers"),
    "no_answer": ("dead_node", Severity.REBOOT, "look at its console and system log, and reboot it"),
}  #: finding dead_node: a node stops answering in a measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Match(Game):
    """A pair that was measured on real nodes."""

    result: GroupResult


class Hunt:
    """A tournament of a check's nodes, and its result. A player is a node, or with `rails` one rail of it."""

    def __init__(
        self, check: CheckDefaults, fleet: Fleet, settings: CheckSettings, options: TournamentOptions, *,
        rails: bool = False,
    ) -> None:  # fmt: skip
        self.field = MeasuredGroups(fleet, check, settings, options)
        self.machines = Machines.ask(fleet) if len(fleet.hosts) > 1 else None
        self.bounds = Bounds(fleet.site, settings, law=self._expect)
        self._options, all_gpus, ranks = options, fleet.site.gpus_per_node, self.field.local_ranks
        self._rails = {f"rail {rank}": (rank,) for rank in ranks} if rails else {"": ranks}  # the ranks of each
        self.players = {_name(host, rail): (host, rail) for rail in self._rails for host in fleet.hosts}
        self._ranks = {name: self._rails[rail] for name, (_, rail) in self.players.items()}
        self.statistic = "rail_busbw" if rails else "pair_busbw"
        self.gpus = min(all_gpus, 1) if rails else all_gpus  # of one node that take part
        self._of_pairs: dict[str, Match] = {}  # by their subject
        # The lowest rate that physics lets pass, by boundary.
        self.physical: dict[str, float] = {}
        self._hosts, self._tolerance = fleet.hosts, options.allowed(fleet.site)
        self._site_places, self.places = fleet.site.places, fleet.site.places
        if self.machines is not None:
            domains = {host: domain_of(host, node, {}) for host, node in self.machines.facts.items()}
            self.places = Places({**self.places.levels, _DOMAIN: domains}).of(fleet.hosts)
        self._places = place_players(self.places, self.players)
        self._inside: dict[Segment, list[Match]] = {}  # pairs within each bad place
        self.matches: dict[str, list[Match]] = defaultdict(list)  # of the first pass by player
        self.repeats: dict[str, list[Match]] = defaultdict(list)  # of the second pass by suspect
        self.silent: dict[str, str] = {}  # reasons for nodes without an answer
        self.device: str | None = None
        self.first: list[Match] = []  # the first pass, between nodes that answered
        self.second: list[Match] = []

    def play(self) -> None:
        """Play pairs of two or more nodes, and name the bad ones; see `schedule`, `floor_of` and `second_pass`.

        Rails play one at a time.
        """

        def play_again(rounds: Rounds) -> Sequence[Game]:
            self.second = self._measure(rounds)
            return self.second

        self._play_first_pass()
        for match in self.first:
            for player in match.pair:
                self.matches[player].append(match)
        self._of_pairs = {_subject(match): match for match in self.first if match.value is not None}
        for match in self._of_pairs.values():
            if isinstance(law := self._expect_pair(match), PhysicsBound):
                self.physical[match.boundary] = min(law.fail, self.physical.get(match.boundary, law.fail))
        # Whether the floor is that of a reference.
        self.referenced = self._reference("") is not None
        self.floors = self._set_floors()
        self.verdict: PairVerdict = judge(
            self.first, play_again, floor=self.floors, repeats=self._options.repeats,
            league=lambda player: self.players[player][1],
        )  # fmt: skip
        for match in self.second:
            self.repeats[match.pair[0]].append(match)
        # Whether most nodes answered, so that silence is a fault of the silent ones.
        self.witnessed = 2 * len(self.silent) < len(self._hosts)
        self._blame_places()

    def _measure(self, rounds: Rounds) -> list[Match]:
        """Measure pairs of players in one step, and note the device and the nodes without an answer."""
        groups = [
            [
                RankGroup(hosts=(self.players[one][0], self.players[two][0]), local_ranks=self._ranks[one])
                for one, two in pairs
            ]
            for pairs in rounds
        ]
        played = self.field.play(groups)
        self.silent.update(played.silent)
        self.device = self.device or played.device
        return [
            Match(pair=pair, value=result.busbw, boundary=self._places.boundary(*pair), result=result)
            for pair, result in zip(chain.from_iterable(rounds), played.results, strict=True)
        ]

    def _bound(self, boundary: str) -> float | None:
        """The rate that a pair across a boundary must reach by a reference and by physics, GB/s; None without one."""
        bounds = (self._reference(boundary), self.physical.get(boundary))
        return max((bound for bound in bounds if bound is not None), default=None)

    def _reference(self, boundary: str) -> float | None:
        if self.device is None:
            return None
        own = self.bounds.floor(ACROSS, self.device, 2, 2 * self.gpus) if boundary else None
        return self.bounds.floor(self.statistic, self.device, 2, 2 * self.gpus) if own is None else own

    def _set_floors(self) -> dict[str, float | None]:
        """The rate below which a pair is slow, by boundary.

        If most pairs across a boundary miss their bound, and those within a place reach theirs, the boundary is at
        fault: its pairs are compared with each other.
        """
        self._rates = boundary_rates(self.first, self.places, self._places_of)
        compared, floors = floors_of(self.first, self._rates, self._tolerance), dict[str, float | None]()
        for boundary, floor in compared.items():
            bound = self._bound(boundary)
            inside = self._rates.get("")
            slow = bound is not None and boundary and self._rates.get(boundary, bound) < bound
            if bound is None or (slow and inside is not None and inside >= bound):
                floors[boundary] = floor
            else:
                by_comparison = None if self._reference(boundary) is not None else floor
                floors[boundary] = bound if by_comparison is None else max(by_comparison, bound)
        # Later pairs may cross further boundaries than those of the first pass.
        lowest = min((floor for floor in floors.values() if floor is not None), default=None)
        return dict.fromkeys(("", *self._places.levels), lowest) | floors

    def _places_of(self, match: Game) -> tuple[str, ...]:
        one, two = (self.players[player][0] for player in match.pair)
        return self.places.between(match.boundary, one, two) if match.boundary in self.places.levels else ()

    def _blame_places(self) -> None:
        """Clear nodes that are all behind one switch, and pairs that all cross one boundary: the place is slow."""
        verdict, slow_ones = self.verdict, set[str]()
        for player in (*verdict.culprits, *verdict.unresolved):
            faults = {match.result.fault for match in self._bad_matches_of(player)}
            slow_ones |= set() if "wrong_values" in faults else {player}
        self.bad_places = find_bad_places(self._places, slow_ones, self.first, self.floors)
        for place in self.bad_places:
            within = {*place.hosts}
            inside = [match for match in self.first if within >= {*match.pair}]
            self._inside[place] = inside or self._measure(schedule(place.hosts, 1))
        self.bad_links = list(find_bad_links(self._places, verdict.links, self.first, self.floors))
        placed = {player for place in self.bad_places for player in place.hosts}
        linked = {pair for link in self.bad_links for pair in link.pairs}
        self.verdict = replace(
            verdict, culprits=tuple(player for player in verdict.culprits if player not in placed),
            unresolved=tuple(player for player in verdict.unresolved if player not in placed),
            acquitted=tuple(player for player in verdict.acquitted if not any(player in pair for pair in linked)),
            links=tuple(pair for pair in verdict.links if pair not in linked),
        )  # fmt: skip

    def _play_first_pass(self) -> None:
        """Play until every node that answers has enough results; each attempt leaves silent nodes out."""
        left, rounds = list(self._hosts), self._options.count_rounds(len(self._hosts))
        for _ in range(_ATTEMPTS):
            drawn = schedule(left, rounds)
            games = [
                [(_name(one, rail), _name(two, rail)) for one, two in pairs] for rail in self._rails for pairs in drawn
            ]
            matches = self._measure(games)
            self.first = [match for match in matches if not set(match.result.group.hosts) & self.silent.keys()]
            asked, left = left, [host for host in left if host not in self.silent]
            if left == asked or self._is_enough(left) or len(left) < 2 or 2 * len(self.silent) >= len(self._hosts):
                break

    def _is_enough(self, hosts: Sequence[str]) -> bool:
        """True if all nodes played at least half as often as the one that played most."""
        answered = (match.result for match in self.first if match.result.fault != "no_answer")
        played = Counter(host for result in answered for host in result.group.hosts)
        return bool(hosts) and 2 * min(played[host] for host in hosts) >= max(played.values(), default=1)

    def _bad_matches_of(self, player: str) -> list[Match]:
        """The bad pairs of a player; only those with good partners, where there are some."""
        return [match for match in self.repeats[player] or self.matches[player] if is_slow(match, self.floors)]

    def _describe(self, matches: Sequence[Match], player: str) -> str:
        partners = ((match.pair[1] if match.pair[0] == player else match.pair[0], match) for match in matches)
        return "; ".join(f"with {self.players[partner][0]} {match.result.text}" for partner, match in partners)

    @property
    def _floor_text(self) -> str:
        """The rate of a good pair, and its source, in words."""
        known = {name: floor for name, floor in self.floors.items() if floor is not None}
        if not known:
            return "there is nothing to compare with"
        source = "as the reference has it" if self.referenced else "by comparison with the others"
        by_physics = any(floor == self.physical.get(name) for name, floor in known.items())
        source = "by physics" if by_physics else source
        if len({*known.values()}) == 1:
            return f"a good pair reaches {min(known.values()):.4g} GB/s, {source}"
        each = (f"{floor:.4g} GB/s {_across(name)}" for name, floor in known.items())
        return f"a good pair reaches {', '.join(each)}, {source}"

    def report(self, further: Sequence[Reading] = ()) -> Report:
        """The report on the tournament, with `further` readings."""
        readings = [*self._make_readings(), *further]
        behind = {host for host, _ in self._behind_boundaries()}
        of_nodes = [reading for reading in readings if reading.host is not None and reading.host not in behind]
        notes = [] if self.physical else list(note_missing_reference(self.bounds, self.statistic))
        if not any(self.floors.values()):
            notes.append("two nodes and no reference: the result shows that their pair works, not whether it is slow")
        if any(bound.statistic == ACROSS for bound in self.bounds.references) and not any(self._rates):
            notes.append(f"no pair is known to be across a boundary: the reference for {ACROSS} judged none")
        findings = [*self._find_dead(), *self._find_culprits(), *self._find_links(), *self._find_slow_at_times()]
        findings += self._find_boundaries()
        findings += self.bounds.judge(of_nodes, device=self.device)
        below = list(self._find_below_physics())
        failed = {finding.host for finding in below if finding.severity.fails}
        slow = [match for match in self.first if is_slow(match, self.floors)]
        floors = {name or "within": floor for name, floor in self.floors.items()}
        return Report(
            findings=(*findings, *below, *(() if self.referenced or failed else self._find_uneven())),
            readings=tuple(readings),
            unjudged={host: reason for host, reason in self.unjudged.items() if host not in failed},
            unbounded=not self.bounds.covers(readings, self.device),
            bounds=tuple(self.bounds.lines(readings, self.device)),
            notes=tuple(notes),
            evidence={  # numbers behind the findings; those of all good pairs are readings
                "floor_gb_s": floors if len({*floors.values()}) > 1 else floors["within"],
                "pairs": len(self.first), "slow_pairs": _list_rows(slow),
                "second_pass": _list_rows(self.second),
                **({"places": self._site_places.levels} if self._site_places.levels else {}),
                **(self.machines.evidence if self.machines else {}),
            },
        )  # fmt: skip

    def add_transport(self, report: Report) -> Report:
        """A report with findings about the transport between the nodes that answer."""
        left = [host for host in self._hosts if host not in self.silent]
        if not report.readings or len(left) < 2:
            return report
        if not self.gpus:
            return report.model_copy(update={"evidence": {**report.evidence, "transport": GLOO}})
        ranks = self.field.local_ranks
        rounds = [[RankGroup(hosts=pair, local_ranks=ranks) for pair in pairs] for pairs in schedule(left, 1)]
        look = self.field.look(rounds)
        wirings = wire(self.machines, look, left)
        if {wiring.domains for wiring in wirings.values()} - {1}:  # pairs of one rack, and of two
            wirings = {host: replace(wiring, domains=None) for host, wiring in wirings.items()}
        return look.add_to(report, wirings, left, shares={"all_gather": self._share()})

    def _share(self) -> float | None:
        """The median pair as a share of what physics expects; None without a law."""
        shares = [
            match.value / law.expected
            for match in self._of_pairs.values()
            if match.value is not None and isinstance(law := self._expect_pair(match), PhysicsBound)
        ]
        return median(shares) if shares else None

    def _expect_pair(self, match: Match) -> PhysicsResult | None:
        """The bound of a pair by physics; None on CPUs and at scale smoke."""
        hosts, size = match.result.group.hosts, match.result.bytes
        if self.machines is None or size is None:
            return None
        one_rail = self.statistic == "rail_busbw"
        return self.machines.rail(hosts, size) if one_rail else self.machines.collective("all_gather", hosts, size)

    def _expect(self, reading: Reading) -> PhysicsResult | None:
        match = self._of_pairs.get(reading.subject) if reading.statistic == self.statistic else None
        return self._expect_pair(match) if match is not None and reading.host is None else None

    def expect_group(self, hosts: Sequence[str]) -> list[PhysicsBound]:
        """The bounds of all these nodes together: by their own facts, and, within one rack, by the median pair."""
        sizes = [match.result.bytes for match in self._of_pairs.values() if match.result.bytes is not None]
        if self.machines is None or not sizes:
            return []
        laws = [self.machines.collective("all_reduce", hosts, min(sizes))]
        nodes = {host: self.machines.facts[host] for host in hosts if host in self.machines.facts}
        alone = len(nodes) == len(hosts) and all(domain_of(host, node, {}) == host for host, node in nodes.items())
        if alone and isinstance(laws[0], PhysicsBound):
            network = self.machines.site.network
            middle = median(match.value for match in self._of_pairs.values() if match.value is not None)
            by_pairs = expect_from_pairs(middle, len(hosts))
            laws.append(oversubscribed(by_pairs, network.oversubscription if network else 1.0))
        return [law for law in laws if isinstance(law, PhysicsBound)]

    def _find_below_physics(self) -> Iterator[Finding]:
        """Yield nodes whose best pair is below what physics expects: a pair is as slow as the slower of its two."""
        behind = {host for host, _ in self._behind_boundaries()}
        for player, (host, rail) in self.players.items():
            matches = (*self.matches[player], *self.repeats[player])
            own = [match for match in matches if match.value is not None and host not in behind]
            best = max(own, key=lambda match: match.value or 0.0, default=None)
            law = self._expect_pair(best) if best is not None else None
            if best is None or best.value is None or not isinstance(law, PhysicsBound):
                continue
            partner = next(name for name in best.pair if name != player)
            reading = Reading(
                host=host, subject=rail, statistic=self.statistic, value=best.value, unit="GB/s", nodes=2,
                gpus=2 * self.gpus,
            )  # fmt: skip
            if self.bounds.is_by_physics(reading, self.device) and player not in self.verdict.culprits:
                for made in judge_by_physics(reading, law, _REPLACE):
                    text = f"its best pair, with {self.players[partner][0]}: {made.message}"
                    yield made.model_copy(update={"message": text})

    def _find_dead(self) -> Iterator[Finding]:
        if self.witnessed:
            kind, severity, action = KINDS["no_answer"]
            for host, reason in self.silent.items():
                yield finding(host, "", kind, severity, f"it gave no answer, and other nodes did: {reason}", action)

    def _find_culprits(self) -> Iterator[Finding]:
        for player in self.verdict.culprits:
            host, rail = self.players[player]
            if host in self.silent:
                continue
            first = self.matches[player]
            # The most frequent fault of its bad pairs is its kind.
            faults = Counter(match.result.fault for match in self._bad_matches_of(player))
            kind, severity, action = KINDS[faults.most_common(1)[0][0]]
            slow = sum(is_slow(match, self.floors) for match in first)
            rates = [match.value for match in first if match.value is not None]
            middle = f", median {median(rates):.4g} GB/s" if rates else ""
            again = self._describe(self.repeats[player], player)
            message = f"bad in {slow} of {len(first)} pairs{middle}; with good nodes again: {again}; {self._floor_text}"
            measured = f"{median(rates):.6g} GB/s" if rates else None
            least = self.floors.get(self._bad_matches_of(player)[0].boundary)
            threshold = None if least is None else f">= {least:.6g} GB/s"
            made = finding(host, rail, kind, severity, message, action)
            yield made.model_copy(update={"measured": measured, "threshold": threshold})

    def _find_boundaries(self) -> Iterator[Finding]:
        """Yield the faults of places and between places, whose nodes are good."""
        for place in self.bad_places:
            among = self._inside[place]
            inside = "slow" if any(is_slow(match, self.floors) for match in among) else "well"
            own = (match for player in place.hosts for match in self.matches[player])
            rates = [match.value for match in own if match.value is not None]
            message = f"all {len(place.hosts)} of {place} are slow with others"
            message += f" (median {median(rates):.4g} GB/s)" if rates else ""
            message += f", and {inside} among themselves; {self._floor_text}: {listed(place.hosts, _MOST_NAMED)}"
            what = "the uplinks of the switch" if inside == "well" else "the switch, and what else they share"
            action = f"check {what}: its ports, cables and routing"
            #: finding slow_boundary: pairs across a switch or between racks are slow, and no node is at fault
            yield finding(None, str(place), "slow_boundary", Severity.ISOLATE, message, action)
        action = "check the cables and routes between the two, and the counters of their ports"
        for link in self.bad_links:
            text = f"{len(link.pairs)} of {link.measured} pairs between the two are slow, and those with others are not"
            yield finding(None, str(link), "slow_boundary", Severity.ISOLATE, f"{text}; {self._floor_text}", action)
        inside_rate = self._rates.get("")
        for boundary, rate in self._rates.items():
            bound = self._bound(boundary)
            missed = bound is not None and rate < bound
            lower = inside_rate is not None and rate < (1 - self._tolerance) * inside_rate
            if boundary and lower and (missed or bound is None):
                message = f"pairs across it reach {rate:.4g} GB/s, those within one {inside_rate:.4g} GB/s"
                message += f"; at least {bound:.4g} GB/s expected" if missed else ""
                action = "check what joins them; if the network is built so, bound it by a reference for across_busbw"
                severity = Severity.CONFIGURE if missed else Severity.MONITOR
                made = finding(None, boundary, "slow_boundary", severity, message, action)
                yield made.model_copy(update={"statistic": ACROSS, "measured": f"{rate:.6g} GB/s"})

    def _find_links(self) -> Iterator[Finding]:
        for pair in self.verdict.links:
            ends = {*pair}
            both = (self.matches[pair[0]], self.repeats[pair[0]], self.repeats[pair[1]])
            matches = [match for match in chain(*both) if {*match.pair} == ends]
            rates = "; ".join(match.result.text for match in matches)
            # Each of the two works with all others: both get a hint, and stay in.
            for player in pair:
                message = f"slow with each other alone: {rates}; both are well with other nodes; {self._floor_text}"
                action = "check the switches and cables between the two; until then, keep them out of one training"
                host = self.players[player][0]
                #: finding slow_link: two nodes are slow with each other alone
                yield finding(host, " - ".join(pair), "slow_link", Severity.MONITOR, message, action)

    def _find_slow_at_times(self) -> Iterator[Finding]:
        linked = {player for pair in self.verdict.links for player in pair}
        for player in self.verdict.acquitted:
            if player in linked:
                continue
            first = self.matches[player]
            slow = [match.result.text for match in first if is_slow(match, self.floors)]
            message = f"bad in {len(slow)} of {len(first)} pairs ({'; '.join(slow)}), and well again with good nodes; "
            message += self._floor_text
            action = "measure again; a link that drops or retrains shows in its counters"
            #: finding slow_at_times: a node was slow in the first pass only
            yield finding(*self.players[player], "slow_at_times", Severity.MONITOR, message, action)

    def _find_uneven(self) -> Iterator[Finding]:
        """Yield a hint for every node outside the fast pairs, where a few pairs are far faster than most.

        Then most nodes may be bad, which is hidden from a comparison of nodes with each other.
        """
        silent = {player for player, (host, _) in self.players.items() if host in self.silent}
        bad = silent | {*self.verdict.culprits}
        well = [match for match in self.first if match.value is not None and not bad & set(match.pair)]
        pairs = {" - ".join(match.pair): match.pair for match in well}
        rates = {" - ".join(match.pair): match.value for match in well if match.value is not None}
        fast = outliers(rates, tolerance=self._tolerance, side="high")
        if not fast:
            return
        fastest = max(rates, key=lambda name: rates[name])
        swift = {self.players[player][0] for name in fast for player in pairs[name]}
        for host in dict.fromkeys(host for player, (host, _) in self.players.items() if player not in bad):
            if host not in swift:
                message = f"{fastest} {fast[fastest].text}, and no pair of this node does: if most nodes are slow, "
                message += "comparing them does not show it"
                action = f"set a reference for {self.statistic} in the system's file"
                #: finding uneven: a few pairs without this node are far faster: most nodes may be slow
                hint = finding(host, "", "uneven", Severity.MONITOR, message, action)
                yield hint.model_copy(update={"statistic": self.statistic})

    @property
    def unjudged(self) -> dict[str, str]:
        reasons: dict[str, str] = {} if self.witnessed else dict(self.silent)
        for player in self.verdict.unresolved:
            host, rail = self.players[player]
            bad = self._describe(self._bad_matches_of(player)[:3], player)
            where = f"{rail}: " if rail else ""
            rest = f"no good node is left as a partner to find the bad one; {self._floor_text}"
            reasons.setdefault(host, f"{where}bad {bad}; {rest}")
        named = {*self.verdict.culprits, *self.verdict.unresolved}
        for host, reason in self._behind_boundaries():
            reasons.setdefault(host, reason)
        for match in self.first:
            if match.result.fault == "wrong_values" and not named & set(match.pair):
                for player in match.pair:
                    reason = f"{' - '.join(match.pair)}: {match.result.reason}; it did not happen again"
                    reasons.setdefault(self.players[player][0], reason)
        answered = (match.result for match in self.first if match.result.fault != "no_answer")
        known = {host for result in answered for host in result.group.hosts} | self.silent.keys()
        known |= {self.players[player][0] for player in named} | reasons.keys()
        for host, _ in self.players.values():
            if host not in known:
                reasons.setdefault(host, "no pair with it was measured")
        return reasons

    def _behind_boundaries(self) -> Iterator[tuple[str, str]]:
        """Yield the nodes whose pairs are slow because of a place or a boundary, and why they stay unjudged."""
        blamed = [(str(place), place.hosts) for place in self.bad_places]
        blamed += [(str(link), link.players) for link in self.bad_links]
        for name, players in blamed:
            for player in players:
                yield self.players[player][0], f"slow because of {name}; the node itself may be well"
        inside = self._rates.get("")
        for boundary, rate in self._rates.items():
            bound = self._bound(boundary)
            if boundary and bound is not None and inside is not None and rate < bound <= inside:
                for host in self._hosts:
                    yield host, f"pairs across the boundary {boundary} are slow everywhere"

    def _make_readings(self) -> Iterator[Reading]:
        how: dict[str, Any] = {"unit": "GB/s", "nodes": 2, "gpus": 2 * self.gpus}
        for boundary, rate in self._rates.items():
            if boundary:
                yield Reading(subject=boundary, statistic=ACROSS, value=rate, **how)
        for match in self.first:
            if match.value is not None:
                yield Reading(subject=_subject(match), statistic=self.statistic, value=match.value, **how)
        for player, (host, rail) in self.players.items():
            if own := [match.value for match in self.matches[player] if match.value is not None]:
                statistic = f"{self.statistic}_median"
                yield Reading(host=host, subject=rail, statistic=statistic, value=median(own), **how)


def _across(boundary: str) -> str:
    return f"across {boundary}" if boundary else "within one place"


def _subject(match: Game) -> str:
    return " - ".join(match.pair)


def _name(host: str, rail: str) -> str:
    return f"{host} {rail}".rstrip()


def _list_rows(matches: Sequence[Match]) -> list[dict[str, Any]]:
    return [
        {"pair": list(match.pair), "busbw_gb_s": match.value}
        | ({"why": match.result.reason} if match.result.reason else {})
        for match in matches
    ]
