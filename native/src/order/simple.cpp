#include "simple.hpp"

#include <queue>
#include <tuple>

namespace loadmaster {

std::vector<i32> by_keys(const OrderGraph& graph, std::span<const double> keys) {
  std::vector<i32> waits(graph.ops), order;
  order.reserve(graph.ops);
  const auto worse = [&](i32 a, i32 b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a > b; };
  std::priority_queue<i32, std::vector<i32>, decltype(worse)> ready(worse);
  for (i32 op = 0; op < graph.ops; ++op) {
    waits[op] = static_cast<i32>(graph.before[op].size());
    if (waits[op] == 0) ready.push(op);
  }
  while (!ready.empty()) {
    const i32 op = ready.top();
    ready.pop();
    order.push_back(op);
    for (const i32 next : graph.after[op])
      if (--waits[next] == 0) ready.push(next);
  }
  return order;
}

std::vector<i32> greedy(const OrderGraph& graph) {
  OrderState state(graph);
  std::vector<i32> order;
  std::vector<i32> since(graph.ops, 0);  // when it became ready
  while (state.done() < graph.ops) {
    std::tuple<i64, i64, i32, i32> best{kForever, 0, 0, 0};
    for (const i32 op : state.ready())
      best = std::min(best, {state.net(op), state.during(op), -since[op], op});
    const i32 op = std::get<3>(best);
    state.run(op);
    order.push_back(op);
    for (const i32 next : graph.after[op])
      if (state.is_ready(next)) since[next] = state.done();
  }
  return order;
}

std::vector<i32> depth_first(const OrderGraph& graph) {
  std::vector<i32> waits(graph.ops), order, stack;
  for (i32 op = graph.ops; op-- > 0;) {
    waits[op] = static_cast<i32>(graph.before[op].size());
    if (waits[op] == 0) stack.push_back(op);
  }
  while (!stack.empty()) {
    const i32 op = stack.back();
    stack.pop_back();
    order.push_back(op);
    const auto nexts = graph.after[op];
    for (size_t i = nexts.size(); i-- > 0;)
      if (--waits[nexts[i]] == 0) stack.push_back(nexts[i]);
  }
  return order;
}

std::vector<i32> reverse_post_order(const OrderGraph& graph) {
  std::vector<i32> order;
  std::vector<i8> met(graph.ops, 0);
  std::vector<std::pair<i32, size_t>> stack;  // an op, and how many of its needs were looked at
  for (i32 end = 0; end < graph.ops; ++end) {
    if (!graph.after[end].empty()) continue;
    met[end] = 1;
    stack.push_back({end, 0});
    while (!stack.empty()) {
      const i32 op = stack.back().first;
      const auto needs = graph.before[op];
      if (stack.back().second == needs.size()) {
        order.push_back(op);
        stack.pop_back();
        continue;
      }
      const i32 need = needs[stack.back().second++];
      if (met[need]) continue;
      met[need] = 1;
      stack.push_back({need, 0});
    }
  }
  return order;
}

}  // namespace loadmaster
