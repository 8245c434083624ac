// GraphOptimization's native part without Python, so that it runs under the sanitizers: the fusion pass
// against a slow one, runs that go on from others against full runs, and what placers must keep.
#include "graph/climb.hpp"
#include "graph/cost_model.hpp"
#include "graph/forced.hpp"
#include "graph/least_time.hpp"
#include "graph/placers.hpp"
#include "graph_case.hpp"

using namespace loadmaster;
using namespace loadmaster::graph;

namespace {

constexpr i32 kGroups = 5;

std::vector<i32> fused(const FusionRules& rules, const std::vector<double>& keys) {
  std::vector<i32> fusion(rules.model.ops);
  Fuser(rules).fuse(keys.data(), fusion.data());
  return fusion;
}

void fusion_of(const Model& m, const FusionColumns& columns, Random& rng, SlowFuser& slow) {
  const FusionRules rules(m, columns);
  Fuser fuser(rules);  // one object for many passes
  std::vector<i32> fusion(m.ops);
  for (int pass = 0; pass < 4; ++pass) {
    const std::vector<double> keys = random_keys(m.ops, rng);
    fuser.fuse(keys.data(), fusion.data());
    CHECK(fusion == slow.fuse(keys));
    for (i32 op = 0; op < m.ops; ++op) CHECK(fusion[op] < 0 || rules.touched[op]);
  }
  const std::vector<double> keys = cost_model_keys(rules, static_cast<i32>(rng.below(m.device_count())));
  for (const double key : keys) CHECK(key >= 0.0 && key <= 1.0);
  CHECK(fused(rules, keys) == slow.fuse(keys));
}

void fusion_pass() {
  i64 merges = 0, cycles = 0;
  for (unsigned seed = 0; seed < 1'000; ++seed) {
    Random rng(seed);
    const Model m = random_graph_model(rng);
    const FusionColumns columns = random_columns(m, rng);
    SlowFuser slow(m, columns);
    fusion_of(m, columns, rng, slow);
    merges += slow.merges;
    cycles += slow.cycles;
  }
  CHECK(merges > 2'000 && cycles > 200);  // otherwise nothing was tested
}

// Programs that are large enough for the limits of a cluster.
void limits_of_clusters() {
  i64 ops = 0, ends = 0, reductions = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    Random rng(seed);
    const bool wide = seed % 3 == 1;
    Model m = random_graph_model(rng, {wide ? 40 : 200, wide ? 300 : 3, wide ? 0.2 : 0.03});
    std::fill(m.group.begin(), m.group.end(), -1);
    std::fill(m.loop.begin(), m.loop.end(), -1);
    std::fill(m.repeat.begin(), m.repeat.end(), 1);
    FusionColumns columns = random_columns(m, rng);
    std::fill(columns.loop_size.begin(), columns.loop_size.end(), 1);
    std::fill(columns.component.begin(), columns.component.end(), -1);
    std::fill(columns.repeats.begin(), columns.repeats.end(), i8{0});
    columns.device.clear();
    columns.all_readers = false;
    for (i32 op = 0; op < m.ops; ++op) {
      columns.fusible[op] = !m.view[op];
      // A reduction that nobody reads shuts no way.
      const bool read = m.reader_rows.begin(op) < m.reader_rows.end(op);
      columns.big_reduction[op] = seed % 3 == 2 && !read;
    }
    SlowFuser slow(m, columns);
    fusion_of(m, columns, rng, slow);
    ops += slow.many_ops;
    ends += slow.many_ends;
    reductions += slow.many_reductions;
  }
  CHECK(ops > 0 && ends > 0 && reductions > 0);
}

Decisions random_decisions(const Model& m, const FusionRules& rules, Random& rng) {
  Decisions d;
  for (i32 op = 0; op < m.ops; ++op)
    if (!m.view[op]) d.node_op.push_back(op);
  const i64 nodes = static_cast<i64>(d.node_op.size());
  const i64 tasks = 1 + rng.below(7);
  if (tasks & 1) d.fusion = d.width, d.width += nodes;
  if (tasks & 2) d.device = d.width, d.width += kGroups;
  if (tasks & 4) d.schedule = d.width, d.width += nodes;
  d.group = random_groups(m, rng, kGroups);
  d.base_fusion = fused(rules, random_keys(m.ops, rng));
  for (i32 g = 0; g < kGroups; ++g) {
    d.base_device.push_back(static_cast<i32>(rng.below(m.device_count())));
    d.pinned.push_back(rng.chance(0.1) ? static_cast<i32>(rng.below(m.device_count())) : -1);
  }
  d.base_critical_path = rng.chance(0.5);
  d.tie_critical_path = rng.chance(0.5);
  return d;
}

double random_value(const Model& m, const Decisions& d, i64 index, Random& rng) {
  const bool device = d.device >= 0 && index >= d.device && index < d.device + kGroups;
  return static_cast<double>(device ? rng.below(m.device_count()) : rng.below(5)) / (device ? 1.0 : 4.0);
}

struct Counts {
  i64 faults = 0, over = 0, resumed = 0;
};

void check_full(const Model& m, const GraphBatch& batch, const std::vector<double>& vector,
                const Judged& judged, Counts& counts) {
  i64 total = 0, fault[3];
  std::vector<i64> over(m.memories.size());
  batch.evaluate(vector.data(), 1, &total, over.data(), fault, 1);
  CHECK(judged.faulty == (fault[0] != 0));
  counts.faults += judged.faulty;
  if (judged.faulty) return;
  CHECK(judged.total == total && judged.over == over);
  counts.over += std::any_of(over.begin(), over.end(), [](i64 bytes) { return bytes > 0; });
}

void threads_agree(const Model& m, const GraphBatch& batch, const Decisions& d, Random& rng) {
  constexpr i64 kCount = 9;
  std::vector<double> vectors;
  for (i64 i = 0; i < kCount * d.width; ++i) vectors.push_back(random_value(m, d, i % d.width, rng));
  const std::size_t memories = m.memories.size();
  std::vector<i64> total(kCount), over(kCount * memories), fault(kCount * 3);
  batch.evaluate(vectors.data(), kCount, total.data(), over.data(), fault.data(), 1);
  std::vector<i64> total3(kCount), over3(kCount * memories), fault3(kCount * 3);
  batch.evaluate(vectors.data(), kCount, total3.data(), over3.data(), fault3.data(), 3);
  CHECK(total == total3 && over == over3 && fault == fault3);
  for (i64 i = 0; i < kCount; ++i) {
    const Decoded decoded = batch.decode(vectors.data() + i * d.width);
    CHECK(static_cast<i64>(decoded.outcome.fault) == fault[i * 3]);
    CHECK(decoded.outcome.total == total[i]);
    for (const i32 device : decoded.device) CHECK(device >= 0 && device < m.device_count());
  }
}

void proposals_one_by_one(const Model& m, const FusionRules& rules, const Decisions& d,
                          const GraphBatch& batch, Random& rng, Counts& counts) {
  Incremental incremental(m, rules, d);
  std::vector<double> stands;
  for (i64 i = 0; i < d.width; ++i) stands.push_back(random_value(m, d, i, rng));
  check_full(m, batch, stands, incremental.start(stands.data()), counts);
  for (int step = 0; step < 25; ++step) {
    std::vector<double> next = stands;
    std::vector<Change> changes;
    for (i64 count = rng.below(3); count >= 0; --count) {
      const i64 index = rng.below(d.width);
      changes.push_back({index, next[index] = random_value(m, d, index, rng)});
    }
    check_full(m, batch, next, incremental.propose(changes), counts);
    CHECK(incremental.vector() == next);
    if (rng.chance(0.5)) {
      incremental.accept();
      stands = next;
    } else {
      incremental.reject();
    }
    CHECK(incremental.vector() == stands);
    check_full(m, batch, stands, incremental.judged(), counts);
  }
  counts.resumed += incremental.runs() - incremental.full_runs();
}

void climbs(const Model& m, const FusionRules& rules, const Decisions& d, const GraphBatch& batch,
            Random& rng, Counts& counts) {
  Climb climb(m, rules, d, 1e6);
  std::vector<double> stands;
  for (i64 i = 0; i < d.width; ++i) stands.push_back(random_value(m, d, i, rng));
  climb.start(stands.data());
  for (int round = 0; round < 2; ++round) {
    Proposals proposals;
    proposals.rows.start.push_back(0);
    for (i64 row = 0; row < 8; ++row) {
      const i64 index = rng.below(d.width);
      proposals.index.push_back(index);
      proposals.source.push_back(rng.chance(0.3) ? index : -1);
      proposals.value.push_back(random_value(m, d, index, rng));
      proposals.rows.start.push_back(row + 1);
      proposals.slack.push_back(rng.chance(0.5) ? 0.0 : 1.0);
    }
    std::vector<Judged> judged;
    std::vector<i8> accepted;
    climb.run(proposals, judged, accepted);
    for (i64 row = 0; row < 8; ++row) {
      check_full(m, batch, climb.vector(row), judged[row], counts);
      if (accepted[row]) stands = climb.vector(row);
    }
    CHECK(climb.vector(-1) == stands);
  }
}

void runs_that_go_on() {
  Counts counts;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random rng(seed);
    // With few weights and inputs, a later difference leaves more of a run as it was.
    const Model m = random_graph_model(rng, seed % 2 ? Shape{20, 3, 0.2} : Shape{40, 0, 0.06});
    const FusionRules rules(m, random_columns(m, rng));
    const Decisions d = random_decisions(m, rules, rng);
    const GraphBatch batch(m, rules, d);
    threads_agree(m, batch, d, rng);
    proposals_one_by_one(m, rules, d, batch, rng, counts);
    climbs(m, rules, d, batch, rng, counts);
  }
  CHECK(counts.faults > 100 && counts.over > 1'000 && counts.resumed > 400);
}

void check_placed(const Placing& p, const std::vector<i32>& device) {
  CHECK(static_cast<i32>(device.size()) == p.groups);
  for (i32 g = 0; g < p.groups; ++g) {
    CHECK(device[g] >= 0 && device[g] < p.devices);
    bool any = false;
    for (i32 d = 0; d < p.devices; ++d) any |= p.can(g, d);
    CHECK(p.can(g, device[g]) || !any);
  }
}

// Longest path to the end with mean times, by asking readers again and again.
i64 slow_level(const Placing& p, i32 step) {
  i64 behind = 0, own = 0, count = 0;
  for (i64 i = p.graph.write_rows.begin(step); i < p.graph.write_rows.end(step); ++i)
    for (i64 r = p.graph.reader_rows.begin(p.graph.written[i]);
         r < p.graph.reader_rows.end(p.graph.written[i]); ++r)
      behind = std::max(behind, slow_level(p, p.graph.reader[r]));
  for (i32 d = 0; d < p.devices; ++d)
    if (p.duration(step, d) >= 0) own = plus(own, p.duration(step, d)), ++count;
  return plus(behind, own / std::max<i64>(1, count));
}

// With the outlook of HEFT and everything freed the decoder is HEFT; what is not freed stays; and a bias that
// is larger than every time decides where there is room.
void repairs(const Placing& p, const i64* room, const std::vector<i32>& by_rank, Outlook outlook,
             Random& rng) {
  const ListDecoder decoder(p);
  const std::vector<i32> free(static_cast<std::size_t>(p.groups), -1);
  CHECK(decoder.repair({.device = free.data(), .room = room, .outlook = outlook}).device == by_rank);
  const Outlook any{rng.below(3'000), rng.below(2'000), rng.below(500), rng.below(1'001)};
  const Order order = static_cast<Order>(rng.below(kOrders));
  std::vector<i32> kept = by_rank;
  for (i32& device : kept)
    if (rng.chance(0.5)) device = -1;
  std::vector<double> bias(static_cast<std::size_t>(p.groups) * static_cast<std::size_t>(p.devices), 0.0);
  for (double& amount : bias) amount = static_cast<double>(rng.below(1'000'000));
  const Repaired found = decoder.repair({kept.data(), room, bias.data(), any, order});
  check_placed(p, found.device);
  for (i32 g = 0; g < p.groups; ++g) CHECK(kept[g] < 0 || found.device[g] == kept[g]);
  const Repaired again = decoder.repair({.device = found.device.data(), .room = room, .outlook = any});
  CHECK(again.device == found.device);
  const std::vector<i64> latest = decoder.latest_ends(again);
  i64 last = 0;
  for (i32 s = 0; s < p.graph.count; ++s) {
    if (p.duration(s, again.device[p.group[s]]) < 0) return;  // it can't run there: nothing is reckoned
    CHECK(again.start[s] <= again.end[s] && again.end[s] <= latest[s] && latest[s] <= again.makespan);
    last = std::max(last, again.end[s]);
  }
  CHECK(last == again.makespan);
}

void placers() {
  i64 spread = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random rng(seed);
    const Model m = random_graph_model(rng);
    const FusionRules rules(m, random_columns(m, rng));
    PlacingColumns columns{
        fused(rules, random_keys(m.ops, rng)), random_groups(m, rng, kGroups), rules.columns.component, {}};
    for (i32 g = 0; g < kGroups; ++g) columns.bytes.push_back(1 + rng.below(100));
    const Placing p(m, columns);
    CHECK(static_cast<i32>(p.order.size()) == p.graph.count);
    const std::vector<i64> level = p.levels(nullptr, false), far = p.levels(nullptr, true);
    for (i32 s = 0; s < p.graph.count; ++s) CHECK(level[s] == slow_level(p, s) && far[s] >= level[s]);

    std::vector<i32> favourite;
    for (i32 s = 0; s < p.graph.count; ++s)
      favourite.push_back(static_cast<i32>(rng.below(p.graph.count + 1)) - 1);
    const Outlook outlook{.ahead = rng.below(1'500), .wait = rng.chance(0.5) ? 1000 : 0};
    const i32 whole = static_cast<i32>(rng.below(p.devices));
    std::vector<i64> ample(m.memories.size(), 1'000), none(m.memories.size(), 0), one(none), some(none);
    one[m.devices[whole].home()] = 1'000;
    for (i64& bytes : some) bytes = rng.below(150);
    const bool all_able = std::all_of(p.able.begin(), p.able.end(), [](i8 able) { return able != 0; });
    for (const auto* room : {&ample, &none, &one, &some}) {
      const std::vector<i32> by_rank = heft(p, room->data(), outlook);
      const std::vector<i32> by_start = earliest_start(p, room->data(), nullptr, outlook);
      const std::vector<i32> with_favourite = earliest_start(p, room->data(), favourite.data(), outlook);
      for (const auto* device : {&by_rank, &by_start, &with_favourite}) {
        check_placed(p, *device);
        if (room == &one && all_able)  // there is room nowhere else
          for (const i32 d : *device) CHECK(p.near[d] == p.near[whole]);
        spread += room == &ample && std::set<i32>(device->begin(), device->end()).size() > 1;
      }
      repairs(p, room->data(), by_rank, outlook, rng);
    }
  }
  CHECK(spread > 200);
}

// Clusters hold no op that is alone and no cut edge, and read and write what is paid for.
void what_no_fusion_avoids() {
  i64 cut = 0, read = 0, together = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    Random rng(seed);
    const Model m = random_graph_model(rng);
    const FusionRules rules(m, random_columns(m, rng));
    const Forced forced = find_forced(rules);
    const std::vector<i32> fusion = fused(rules, random_keys(m.ops, rng));
    StepGraph steps;
    PlanView plan;
    plan.fusion = fusion.data();
    Outcome outcome;
    CHECK(build_graph(m, plan, steps, outcome));
    for (i32 s = 0; s < steps.count; ++s) {
      i64 paid_read = 0, paid_write = 0, reads = 0, writes = 0;
      for (i64 i = steps.member_rows.begin(s); i < steps.member_rows.end(s); ++i) {
        const i32 op = steps.member[i];
        CHECK(!forced.alone[op] || steps.member_rows.end(s) - steps.member_rows.begin(s) == 1);
        for (i64 k = rules.prev_rows.begin(op); k < rules.prev_rows.end(op); ++k)
          cut += forced.cut[k], together += forced.cut[k] && steps.of[rules.prev[k]] == s;
        paid_read += forced.read[op], paid_write += forced.write[op];
      }
      for (i64 row = steps.access.rows.begin(s); row < steps.access.rows.end(s); ++row)
        (steps.access.write[row] ? writes : reads) += steps.access.bytes[row];
      CHECK(paid_read <= reads && paid_write <= writes);
      read += paid_read;
    }
  }
  CHECK(together == 0 && cut > 1'000 && read > 1'000);
}

// The longest path to the end of a node, by asking those before it again and again.
i64 slow_end(const TimedGraph& g, i32 v) {
  i64 start = 0;
  for (i64 i = g.prev_rows.begin(v); i < g.prev_rows.end(v); ++i)
    start = std::max(start, slow_end(g, g.prev[i]));
  return start + g.compute[v];
}

// Steps one after another on one device are a schedule that moves nothing.
void least_times() {
  i64 raised = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    Random rng(seed);
    TimedGraph g;
    g.devices = 1 + rng.below(4), g.groups = 4, g.most_members = kMostOps;
    g.prev_rows.start.push_back(0);
    i64 sum = 0, longest = 0;
    for (i32 v = 0, n = static_cast<i32>(rng.below(14)); v < n; ++v) {
      for (i32 u = 0; u < v; ++u)
        if (rng.below(v) < 2) g.prev.push_back(u), g.cut.push_back(1), g.move.push_back(rng.below(40));
      g.prev_rows.start.push_back(static_cast<i64>(g.prev.size()));
      g.single.push_back(1), g.launch.push_back(0), g.compute.push_back(1 + rng.below(20));
      g.group.push_back(static_cast<i32>(rng.below(5)) - 1);
      sum += g.compute.back();
    }
    g.memory = g.compute;
    for (i32 v = 0; v < g.nodes(); ++v) longest = std::max(longest, slow_end(g, v));
    const LeastTime found = least_time(g);
    CHECK(found.path == longest && found.work >= longest && found.work <= sum);
    if (g.devices == 1) CHECK(found.work == sum);
    raised += found.work > found.path;
  }
  CHECK(raised > 100);
}

}  // namespace

int main() {
  what_no_fusion_avoids();
  least_times();
  fusion_pass();
  limits_of_clusters();
  runs_that_go_on();
  placers();
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
