// The two kinds of memory: a CUDA device's, through the driver that is there when the program runs, and the
// host's. No CUDA is needed to build this.
#ifdef _WIN32
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "device/own_allocator.hpp"

namespace loadmaster {

namespace {

#ifdef _WIN32
constexpr const char* kDriver = "nvcuda.dll";
void* open_driver() { return reinterpret_cast<void*>(LoadLibraryA(kDriver)); }
void* driver_symbol(void* driver, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(driver), name));
}
#else
constexpr const char* kDriver = "libcuda.so.1";
void* open_driver() { return dlopen(kDriver, RTLD_NOW); }
void* driver_symbol(void* driver, const char* name) { return dlsym(driver, name); }
#endif

class DeviceMemory : public Memory {
 public:
  void* take(i64 bytes) override {
    ready();
    unsigned long long address = 0;
    return alloc_(&address, static_cast<std::size_t>(bytes)) == 0 ? reinterpret_cast<void*>(address)
                                                                  : nullptr;
  }

  void give(void* block) override {
    ready();
    free_(reinterpret_cast<unsigned long long>(block));
  }

  void wait() override {
    ready();
    synchronize_();
  }

 private:
  template <class Function>
  Function found(const char* name) {
    auto* symbol = driver_symbol(library_, name);
    if (symbol == nullptr)
      throw std::runtime_error(std::string("loadmaster: the CUDA driver has no ") + name);
    return reinterpret_cast<Function>(symbol);
  }

  void load() {
    library_ = open_driver();  // it stays: PyTorch uses it too
    if (library_ == nullptr)
      throw std::runtime_error(std::string("loadmaster: there is no CUDA driver (") + kDriver + ")");
    alloc_ = found<decltype(alloc_)>("cuMemAlloc_v2");
    free_ = found<decltype(free_)>("cuMemFree_v2");
    synchronize_ = found<decltype(synchronize_)>("cuCtxSynchronize");
    current_ = found<decltype(current_)>("cuCtxGetCurrent");
    const auto init = found<int (*)(unsigned)>("cuInit");
    if (init(0) != 0) throw std::runtime_error("loadmaster: the CUDA driver can't be used");
  }

  // A thread's first use may come before anything else has made a context current for it.
  void ready() {
    if (library_ == nullptr) load();
    void* context = nullptr;
    if (current_(&context) == 0 && context != nullptr) return;
    const auto retain = found<int (*)(void**, int)>("cuDevicePrimaryCtxRetain");
    const auto set = found<int (*)(void*)>("cuCtxSetCurrent");
    if (retain(&context, 0) != 0 || set(context) != 0)
      throw std::runtime_error("loadmaster: the CUDA device can't be used");
  }

  void* library_ = nullptr;
  int (*alloc_)(unsigned long long*, std::size_t) = nullptr;
  int (*free_)(unsigned long long) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*current_)(void**) = nullptr;
};

class HostMemory : public Memory {
 public:
  explicit HostMemory(i64 limit) : left_(limit) {}

  void* take(i64 bytes) override {
    if (bytes > left_) return nullptr;
    void* block = ::operator new(static_cast<std::size_t>(bytes), kAligned, std::nothrow);
    if (block == nullptr) return nullptr;
    left_ -= bytes;
    size_[block] = bytes;
    return block;
  }

  void give(void* block) override {
    left_ += size_.at(block);
    size_.erase(block);
    ::operator delete(block, kAligned);
  }

  void wait() override {}

 private:
  static constexpr std::align_val_t kAligned{512};
  i64 left_;
  std::unordered_map<void*, i64> size_;
};

}  // namespace

std::unique_ptr<Memory> device_memory() { return std::make_unique<DeviceMemory>(); }
std::unique_ptr<Memory> host_memory(i64 limit) { return std::make_unique<HostMemory>(limit); }

}  // namespace loadmaster
