#include "counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace counted {

int64_t allocations_left = -1;
int64_t live = 0, live_bytes = 0, peak_bytes = 0;

namespace {

void* allocate(size_t size, size_t alignment = 0) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = alignment ? std::aligned_alloc(alignment, size) : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++live;
  live_bytes += malloc_usable_size(memory);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  --live;
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace
}  // namespace counted

using counted::allocate, counted::release;

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void* operator new(size_t size, std::align_val_t alignment) { return allocate(size, static_cast<size_t>(alignment)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
