// The allocator behind planned runs, without Python and on host memory, so that it runs under the sanitizers:
// whatever is asked for, nothing lies where another does, and what is given can be written to.
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "device/own_allocator.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

constexpr i64 kGrain = 512, kRoom = 48 * kGrain, kSteps = 4;

struct Totals {
  i64 results = 0, temporaries = 0, refused = 0, cached = 0;
};

struct Given {
  char* at;
  i64 bytes;
  char mark;
};

// In each step some blocks of the arena belong to others, some are results, the rest is free.
std::shared_ptr<Rooms> random_rooms(Random& rng, i64 base) {
  auto rooms = std::make_shared<Rooms>();
  rooms->base = base;
  rooms->result_start.push_back(0);
  rooms->free_start.push_back(0);
  for (i64 step = 0; step < kSteps; ++step) {
    for (i64 low = 0; low < kRoom;) {
      const i64 size = std::min(kRoom - low, kGrain * (1 + rng.below(8)));
      if (rng.chance(0.3)) {
        rooms->result_bytes.push_back(size - rng.below(kGrain));
        rooms->result_room.push_back(size);
        rooms->result_offset.push_back(low);
      } else if (rng.chance(0.5)) {
        rooms->free_low.push_back(low);
        rooms->free_high.push_back(low + size);
      }
      low += size;
    }
    rooms->result_start.push_back(static_cast<i64>(rooms->result_bytes.size()));
    rooms->free_start.push_back(static_cast<i64>(rooms->free_low.size()));
  }
  rooms->number.assign(rooms->result_bytes.size(), -1);
  rooms->most.assign(kSteps, 0);
  return rooms;
}

bool is_mine(const Rooms& rooms, i32 step, i64 address) {
  for (i64 each = rooms.free_start[step]; each < rooms.free_start[step + 1]; ++each)
    if (rooms.free_low[each] <= address && address < rooms.free_high[each]) return true;
  for (i64 each = rooms.result_start[step]; each < rooms.result_start[step + 1]; ++each) {
    const i64 low = rooms.result_offset[each];
    if (low <= address && address < low + rooms.result_room[each]) return true;
  }
  return false;
}

bool is_whole(const Given& given) {
  return std::all_of(given.at, given.at + given.bytes, [&](char byte) { return byte == given.mark; });
}

void take_back(OwnAllocator& own, std::vector<Given>& live, i64 number) {
  CHECK(is_whole(live[number]));
  own.free(live[number].at);
  live.erase(live.begin() + number);
}

void steps_keep_to_their_rooms(Random& rng, Totals& totals) {
  OwnAllocator own(host_memory(4 * kRoom));
  auto* block = static_cast<char*>(own.alloc(kRoom + kGrain));
  auto* arena = block + kGrain;  // a block is known by its address, so nothing in it may begin there
  const i64 base = reinterpret_cast<i64>(arena);
  const auto rooms = random_rooms(rng, base);
  for (i32 step = 0; step < kSteps; ++step) {
    CHECK(own.at(rooms, step) == 0);
    std::vector<i64> asked;
    for (i64 each = rooms->result_start[step]; each < rooms->result_start[step + 1]; ++each) {
      asked.push_back(rooms->result_bytes[each]);
      if (rng.chance(0.2)) rooms->number[each] = static_cast<i32>(rng.below(6));
    }
    for (int extra = 0; extra < 6; ++extra) asked.push_back(1 + rng.below(4 * kGrain));
    rng.shuffle(asked);
    std::vector<Given> live;
    char mark = 1;
    for (const i64 bytes : asked) {
      if (!live.empty() && rng.chance(0.4)) take_back(own, live, rng.below(static_cast<i64>(live.size())));
      try {
        auto* at = static_cast<char*>(own.alloc(bytes));
        const i64 low = at - arena;
        for (i64 byte = low; byte < low + bytes; ++byte) CHECK(is_mine(*rooms, step, byte));
        CHECK(own.number_of(base + low) >= 0 && !own.within(low, bytes).empty());
        std::memset(at, mark, static_cast<std::size_t>(bytes));
        live.push_back({at, bytes, mark++});
        const auto first = rooms->result_offset.begin();
        totals.results +=
            std::count(first + rooms->result_start[step], first + rooms->result_start[step + 1], low);
        ++totals.temporaries;
      } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()).starts_with("loadmaster: no room"));
        ++totals.refused;
      }
    }
    while (!live.empty()) take_back(own, live, 0);
  }
  CHECK(own.at(rooms, -1) == 0 && rooms.use_count() == 1);  // between runs it holds no plan
  CHECK(own.number_of(base) == -1 && own.within(0, kRoom).empty());
  own.free(block);
  CHECK(own.held() == 0 && own.cached() == kRoom + kGrain);
}

void blocks_are_cached(Random& rng, Totals& totals) {
  const i64 limit = 40 * kGrain;
  const bool more = rng.chance(0.5);  // than it is held to
  OwnAllocator own(host_memory(more ? 2 * limit : limit));
  if (more) own.hold_to(limit);
  std::vector<Given> live;
  i64 held = 0;
  for (int turn = 0; turn < 60; ++turn) {
    if (!live.empty() && rng.chance(0.5)) {
      take_back(own, live, rng.below(static_cast<i64>(live.size())));
    } else {
      const i64 bytes = 1 + rng.below(12 * kGrain), cached = own.cached();
      try {
        auto* at = static_cast<char*>(own.alloc(bytes));
        std::memset(at, turn, static_cast<std::size_t>(bytes));
        live.push_back({at, bytes, static_cast<char>(turn)});
        totals.cached += own.cached() < cached;
      } catch (const std::runtime_error&) {
        ++totals.refused;
        CHECK(own.cached() == 0);  // all was given back before it was refused
      }
    }
    held = own.held();
    CHECK(held <= own.most() && held + own.cached() <= limit);
    for (const Given& each : live) CHECK(is_whole(each));
  }
  while (!live.empty()) take_back(own, live, 0);
  CHECK(own.held() == 0);
  own.release();
  own.reset_most();
  CHECK(own.cached() == 0 && own.most() == 0 && own.alloc(0) == nullptr);
}

void a_block_waits_for_what_is_lent_of_it() {
  OwnAllocator own(host_memory(64 * kGrain));
  auto* block = static_cast<char*>(own.alloc(8 * kGrain));
  own.lend(block + kGrain, 100);
  void* const larger = own.alloc(101);
  CHECK(larger != block + kGrain);  // of another size
  CHECK(own.alloc(100) == block + kGrain);
  void* const second = own.alloc(100);
  CHECK(second != block + kGrain);  // it is lent once
  own.free(larger);
  own.free(second);
  own.lend(block + 3 * kGrain, 100);
  CHECK(own.alloc(100) == block + 3 * kGrain);
  const i64 held = own.held();
  own.free(block);
  CHECK(own.held() == held);
  own.free(block + 3 * kGrain);
  CHECK(own.held() == held);
  own.free(block + kGrain);
  CHECK(own.held() == held - 8 * kGrain && own.cached() == 10 * kGrain);
  block = static_cast<char*>(own.alloc(8 * kGrain));
  own.lend(block + kGrain, 100);
  own.free(own.alloc(100));  // given back before the block
  own.free(block);
  CHECK(own.held() == 0);
}

// PyTorch frees from any thread.
void threads_share_it() {
  OwnAllocator own(host_memory(i64{1} << 20));
  std::vector<std::jthread> threads;
  for (u64 thread = 0; thread < 3; ++thread)
    threads.emplace_back([&own, thread] {
      Random rng(thread);
      for (int turn = 0; turn < 300; ++turn) {
        void* block = own.alloc(1 + rng.below(8 * kGrain));
        std::memset(block, turn, 1);
        own.free(block);
      }
    });
  threads.clear();
  CHECK(own.held() == 0);
}

}  // namespace

int main() {
  Totals totals;
  for (u64 seed = 0; seed < 400; ++seed) {
    Random rng(seed);
    steps_keep_to_their_rooms(rng, totals);
    blocks_are_cached(rng, totals);
  }
  a_block_waits_for_what_is_lent_of_it();
  threads_share_it();
  CHECK(totals.results > 1000 && totals.temporaries > 5000 && totals.refused > 300 && totals.cached > 1000);
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
