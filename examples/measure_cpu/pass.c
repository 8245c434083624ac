/* One pass of a program with every tensor where a plan has it, timed.

   `pass LAYOUT` prints the seconds of a pass (median of several). A layout whose results differ
   from those of tensors that are kept apart ends with exit code 3.

   Every op really reads the bytes of its inputs and weights and really writes its results, which
   depend on all it read. There are three kinds of memory:
     HOT   an arena that stays in the caches, if it is small enough for them;
     DRAM  an arena whose lines are flushed after each use, so that the next one goes to DRAM;
     FILE  a file without a name: all bytes are copied by the system, in and out.
   The clock runs while bytes are read, copied and written, and stands still while lines are flushed.

   LAYOUT holds numbers: memories, the kind of each; tensors, of each memory, offset, bytes and
   whether it is given before the pass; ops, of each the numbers of reads and writes, then pairs of
   tensor and bytes. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HOT, DRAM, FILE_, LINE = 64, CHUNK = 1 << 15, PASSES = 9, HUGE = 1 << 21 };

typedef struct { int64_t memory, offset, bytes, given; int kind; uint8_t *at; } Tensor;
typedef struct { int64_t tensor, bytes; } Access;
typedef struct { int64_t reads, writes; Access *access; } Op;

static int64_t n_memories, n_tensors, n_ops;
static int64_t *kinds;
static Tensor *tensors;
static Op *ops;
static int file;
static uint32_t staging[CHUNK / 4];

static void fail(const char *what, int code) {
  fprintf(stderr, "%s\n", what);
  exit(code);
}

static void *got(void *memory) {
  if (!memory) fail("out of memory", 2);
  return memory;
}

static uint8_t *arena(int64_t bytes) {
  size_t size = ((size_t)bytes / HUGE + 1) * HUGE;
  uint8_t *memory = got(aligned_alloc(HUGE, size));
#ifdef MADV_HUGEPAGE
  madvise(memory, size, MADV_HUGEPAGE); /* so that address translation adds no noise */
#endif
  memset(memory, 1, (size_t)bytes);
  return memory;
}

static void flush_line(const uint8_t *line) {
#if defined(__x86_64__)
  __asm__ volatile("clflush (%0)" : : "r"(line) : "memory");
#elif defined(__aarch64__)
  __asm__ volatile("dc civac, %0" : : "r"(line) : "memory");
#else
#error "how this processor flushes a line of its caches is not known here"
#endif
}

static void flush(const uint8_t *at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += LINE) flush_line(at + i);
  __sync_synchronize();
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t digest(const uint8_t *at, int64_t bytes) {
  const uint32_t *word = (const uint32_t *)at;
  uint32_t sum = 0, tail = 0, count = (uint32_t)(bytes / 4);
  for (uint32_t i = 0; i < count; i++) sum += word[i] ^ i;
  memcpy(&tail, word + count, (size_t)(bytes % 4));
  return sum + tail * 7919u;
}

static void fill(uint8_t *at, int64_t bytes, uint32_t seed) {
  uint32_t *word = (uint32_t *)at, count = (uint32_t)(bytes / 4);
  for (uint32_t i = 0; i < count; i++) word[i] = seed + i * 40503u;
  memcpy(word + count, &seed, (size_t)(bytes % 4));
}

/* Read or write, a chunk at a time, so that what is slow never pushes what is hot out of the
   caches. If `seconds` is null nothing is timed or flushed. */
static void stream(Access access, int writing, uint32_t *state, double *seconds) {
  const Tensor *tensor = &tensors[access.tensor];
  for (int64_t from = 0; from < access.bytes; from += CHUNK) {
    int64_t bytes = access.bytes - from < CHUNK ? access.bytes - from : CHUNK, copied = bytes;
    int in_file = tensor->kind == FILE_;
    uint8_t *at = in_file ? (uint8_t *)staging : tensor->at + from;
    double start = seconds ? now() : 0;
    if (writing) {
      fill(at, bytes, *state + (uint32_t)from);
      if (in_file) copied = pwrite(file, at, (size_t)bytes, tensor->offset + from);
    } else {
      if (in_file) copied = pread(file, at, (size_t)bytes, tensor->offset + from);
      *state = *state * 31u + digest(at, bytes);
    }
    if (copied != bytes) fail("the file can't be read or written", 2);
    if (!seconds) continue;
    *seconds += now() - start;
    if (tensor->kind == DRAM) flush(at, bytes);
  }
}

/* All ops in order; returns a number that depends on all that was read. */
static uint32_t pass(double *seconds) {
  uint32_t results = 0;
  for (int64_t i = 0; i < n_ops; i++) {
    uint32_t state = (uint32_t)i;
    for (int64_t k = 0; k < ops[i].reads + ops[i].writes; k++)
      stream(ops[i].access[k], k >= ops[i].reads, &state, seconds);
    results = results * 31u + state;
  }
  return results;
}

static void give(void) {
  for (int64_t t = 0; t < n_tensors; t++) {
    uint32_t state = (uint32_t)t;
    if (tensors[t].given) stream((Access){t, tensors[t].bytes}, 1, &state, NULL);
  }
}

/* Every tensor in a place of its own. */
static uint8_t *place_apart(void) {
  int64_t size = 0;
  for (int64_t t = 0; t < n_tensors; t++) size += (tensors[t].bytes / LINE + 1) * LINE;
  uint8_t *memory = arena(size), *next = memory;
  for (int64_t t = 0; t < n_tensors; t++) {
    tensors[t].kind = HOT;
    tensors[t].at = next;
    next += (tensors[t].bytes / LINE + 1) * LINE;
  }
  return memory;
}

/* Every tensor where the layout has it. */
static void place(void) {
  for (int64_t m = 0; m < n_memories; m++) {
    int64_t size = 0;
    for (int64_t t = 0; t < n_tensors; t++) {
      int64_t end = tensors[t].offset + tensors[t].bytes;
      if (tensors[t].memory == m && end > size) size = end;
    }
    uint8_t *base = kinds[m] == FILE_ ? NULL : arena(size);
    if (kinds[m] == FILE_ && ftruncate(file, size) != 0) fail("the file can't be made", 2);
    for (int64_t t = 0; t < n_tensors; t++) {
      if (tensors[t].memory != m) continue;
      tensors[t].kind = (int)kinds[m];
      tensors[t].at = base ? base + tensors[t].offset : NULL;
    }
  }
}

static int64_t number(FILE *from) {
  long long value;
  if (fscanf(from, "%lld", &value) != 1 || value < 0) fail("the layout is not one", 2);
  return value;
}

static void read_layout(const char *path) {
  FILE *from = fopen(path, "r");
  if (!from) fail("the layout can't be read", 2);
  n_memories = number(from);
  kinds = got(calloc((size_t)n_memories + 1, sizeof *kinds));
  for (int64_t m = 0; m < n_memories; m++) kinds[m] = number(from);
  n_tensors = number(from);
  tensors = got(calloc((size_t)n_tensors + 1, sizeof *tensors));
  for (Tensor *t = tensors; t < tensors + n_tensors; t++) {
    t->memory = number(from);
    t->offset = number(from);
    t->bytes = number(from);
    t->given = number(from);
  }
  n_ops = number(from);
  ops = got(calloc((size_t)n_ops + 1, sizeof *ops));
  for (Op *op = ops; op < ops + n_ops; op++) {
    op->reads = number(from);
    op->writes = number(from);
    int64_t count = op->reads + op->writes;
    op->access = got(calloc((size_t)count + 1, sizeof *op->access));
    for (int64_t k = 0; k < count; k++) {
      op->access[k].tensor = number(from);
      op->access[k].bytes = number(from);
    }
  }
  fclose(from);
}

static int nameless_file(void) {
#ifdef __linux__
  int found = memfd_create("pass", 0); /* in memory: no disk adds noise */
#else
  FILE *made = tmpfile();
  int found = made ? fileno(made) : -1;
#endif
  if (found < 0) fail("the file can't be made", 2);
  return found;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc != 2) fail("usage: pass LAYOUT", 2);
  read_layout(argv[1]);
  file = nameless_file();

  uint8_t *apart = place_apart();
  give();
  uint32_t expected = pass(NULL);
  free(apart);

  place();
  give();
  double seconds[PASSES + 1] = {0};
  for (int i = 0; i <= PASSES; i++)
    if (pass(&seconds[i]) != expected)
      fail("the results differ from those of tensors kept apart: some overlap", 3);
  /* The first pass only brought what is hot into the caches. */
  qsort(seconds + 1, PASSES, sizeof *seconds, ascending);
  printf("%.9f\n", seconds[1 + PASSES / 2]);
  return 0;
}
