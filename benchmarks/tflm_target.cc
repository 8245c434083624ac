// What `benchmarks/tflm_target.py` runs in place of the main function of an image for Cortex-M: the TFLite
// Micro that is linked into the image is asked in how few bytes a model starts, and what it computes there.
// No header of it is at hand, so its functions are called by the names that the linker sees
// (`--just-symbols`).

#include <cstddef>
#include <cstdint>

extern "C" {
// tflite::MicroAllocator::Create(arena, bytes, planner), ::AllocatePersistentBuffer(bytes)
void* _ZN6tflite14MicroAllocator6CreateEPhjNS_17MemoryPlannerTypeE(uint8_t* arena, size_t bytes, int planner);
void* _ZN6tflite14MicroAllocator24AllocatePersistentBufferEj(void* self, size_t bytes);
// tflite::MicroInterpreter::MicroInterpreter(model, resolver, allocator, variables, profiler) and what it can
// do
void _ZN6tflite16MicroInterpreterC1EPKNS_5ModelERKNS_15MicroOpResolverEPNS_14MicroAllocatorEPNS_22MicroResourceVariablesEPNS_22MicroProfilerInterfaceE(
    void* self, const void* model, const void* resolver, void* allocator, void* variables, void* profiler);
void _ZN6tflite16MicroInterpreterD1Ev(void* self);
int8_t _ZN6tflite16MicroInterpreter15AllocateTensorsEv(void* self);
int8_t _ZN6tflite16MicroInterpreter6InvokeEv(void* self);
// The first words of a TfLiteTensor: quantization, scale, zero point, data, dimensions, bytes, type
struct Tensor {
  uint32_t before[4];
  uint8_t* data;
  void* dimensions;
  size_t bytes;
  uint8_t type;
};
Tensor* _ZN6tflite16MicroInterpreter5inputEj(void* self, size_t number);
Tensor* _ZN6tflite16MicroInterpreter6outputEj(void* self, size_t number);
// arm::app::fwk::tflm::TestModel, which has every kernel
void _ZN3arm3app3fwk4tflm9TestModelC1Ev(void* self);
bool _ZN3arm3app3fwk4tflm9TestModel16EnlistOperationsEv(void* self);
const void* _ZN3arm3app3fwk4tflm9TestModel13GetOpResolverEv(void* self);
}

namespace {

// What the script loads into external memory, at addresses that count as secure.
struct Request {
  uint32_t variables, inputs, outputs, guess, invoke;
};
const auto* const request = reinterpret_cast<const Request*>(0x91000000);
const auto* const file = reinterpret_cast<const uint8_t*>(0x92000000);
auto* const arena = reinterpret_cast<uint8_t*>(0xA0000000);
constexpr uint32_t kMostArena = 0x10000000, kUnit = 16, kStep = 8, kFloat = 1;

alignas(1024) void* vectors[64];
alignas(16) uint8_t app[8192], interpreter[1024];
const void* resolver;
uint32_t checksum;

void semihost(int operation, const void* argument) {
  register int r0 asm("r0") = operation;
  register const void* r1 asm("r1") = argument;
  asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

void say(const char* text) { semihost(4, text); }

void say(uint32_t number) {
  char text[12];
  char* at = text + sizeof text - 1;
  *at = 0;
  do {
    *--at = static_cast<char>('0' + number % 10);
  } while (number /= 10);
  say(at);
}

[[noreturn]] void finish() {
  semihost(0x18, reinterpret_cast<const void*>(0x20026));
  for (;;) {
  }
}

void* keep(void* allocator, size_t bytes) {
  return _ZN6tflite14MicroAllocator24AllocatePersistentBufferEj(allocator, bytes);
}

// tflite::MicroResourceVariables::Create, which images without variables do not have.
void* make_variables(void* allocator, uint32_t count) {
  struct Variables {
    uint32_t* entries;
    int most, number;
  };
  constexpr uint32_t kWords = 5;
  auto* made = static_cast<Variables*>(keep(allocator, sizeof(Variables)));
  if (made == nullptr) return nullptr;
  *made = {static_cast<uint32_t*>(keep(allocator, kWords * sizeof(uint32_t) * count)),
           static_cast<int>(count), 0};
  if (made->entries == nullptr) return nullptr;
  for (uint32_t i = 0; i < kWords * count; ++i) made->entries[i] = 0;
  return made;
}

uint32_t draw(uint32_t& state) { return state = state * 1664525 + 1013904223; }

bool run() {
  uint32_t state = 1;
  for (uint32_t number = 0; number < request->inputs; ++number) {
    const Tensor& x = *_ZN6tflite16MicroInterpreter5inputEj(interpreter, number);
    if (x.type == kFloat) {
      for (size_t i = 0; i < x.bytes / 4; ++i)
        reinterpret_cast<float*>(x.data)[i] = static_cast<float>(draw(state) >> 8) * 0x1p-24f;
    } else {
      for (size_t i = 0; i < x.bytes; ++i) x.data[i] = static_cast<uint8_t>(draw(state) >> 24);
    }
  }
  if (_ZN6tflite16MicroInterpreter6InvokeEv(interpreter) != 0) return false;
  checksum = 2166136261;  // FNV-1a
  for (uint32_t number = 0; number < request->outputs; ++number) {
    const Tensor& y = *_ZN6tflite16MicroInterpreter6outputEj(interpreter, number);
    for (size_t i = 0; i < y.bytes; ++i) checksum = (checksum ^ y.data[i]) * 16777619;
  }
  return true;
}

bool starts(uint32_t bytes, bool invoke) {
  void* const allocator = _ZN6tflite14MicroAllocator6CreateEPhjNS_17MemoryPlannerTypeE(arena, bytes, 0);
  if (allocator == nullptr) return false;
  void* variables = nullptr;
  if (request->variables != 0) {
    variables = make_variables(allocator, request->variables);
    if (variables == nullptr) return false;
  }
  const void* const model = file + *reinterpret_cast<const uint32_t*>(file);
  _ZN6tflite16MicroInterpreterC1EPKNS_5ModelERKNS_15MicroOpResolverEPNS_14MicroAllocatorEPNS_22MicroResourceVariablesEPNS_22MicroProfilerInterfaceE(
      interpreter, model, resolver, allocator, variables, nullptr);
  bool ok = _ZN6tflite16MicroInterpreter15AllocateTensorsEv(interpreter) == 0;
  if (ok && invoke) ok = run();
  _ZN6tflite16MicroInterpreterD1Ev(interpreter);
  return ok;
}

}  // namespace

// In place of the image's _exit, and of every fault.
extern "C" [[noreturn]] void crash() {
  say("crash\n");
  finish();
}

// In place of the image's DebugLog.
extern "C" void be_quiet() {}

// In place of the image's main.
extern "C" [[noreturn]] void measure() {
  for (auto& vector : vectors) vector = reinterpret_cast<void*>(crash);
  *reinterpret_cast<void* volatile*>(0xE000ED08) = vectors;  // VTOR
  _ZN3arm3app3fwk4tflm9TestModelC1Ev(app);
  _ZN3arm3app3fwk4tflm9TestModel16EnlistOperationsEv(app);
  resolver = _ZN3arm3app3fwk4tflm9TestModel13GetOpResolverEv(app);
  uint32_t high = (request->guess + kUnit - 1) / kUnit * kUnit;
  while (high <= kMostArena && !starts(high, false)) high *= 2;
  if (high > kMostArena) {
    say("none\n");
    finish();
  }
  uint32_t step = kUnit, low = high - kUnit;
  while (low > 0 && starts(low, false)) {
    step *= 2;
    high = low;
    low = low > step ? low - step : 0;
  }
  while (high - low > kStep) {
    const uint32_t middle = (low + high) / 2 / kStep * kStep;
    (starts(middle, false) ? high : low) = middle;
  }
  say("least ");
  say(high);
  say("\n");
  if (request->invoke != 0 && starts(high, true)) {
    say("computes ");
    say(checksum);
    say("\n");
  }
  finish();
}
