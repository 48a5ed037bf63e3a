// Takes documents in and deletes them until it is killed. It writes "? <op> <id> <n>" to standard
// output before each operation, and "! <op> <id> <n>" after it was acknowledged.
// Usage: crash_child <store folder> <seed> <first n>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "cachestore/store.h"
#include "ingest/ingest_service.h"
#include "tests/scenario/ingest/crash_texts.h"
#include "tests/support/fake_engine.h"

namespace {

void say(const std::string& line) {
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::_Exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quire;
  if (argc != 4) return 2;
  StoreOptions so;
  so.path = argv[1];
  so.dram_bytes = 1 << 20;
  auto store = open_store(std::move(so));
  if (!store.ok()) return std::fprintf(stderr, "%s\n", store.status().to_string().c_str()), 2;
  test::FakeEngine engine(**store);
  IngestOptions options;
  // Jobs are saved continuously, so that kills happen during saves.
  options.maintenance_interval_ms = 1;
  auto service = create_ingest_service(options, **store, engine);
  if (!service.ok() || !(*service)->start().ok()) return 2;
  std::mt19937_64 rng(static_cast<std::uint64_t>(std::atoll(argv[2])));
  for (long n = std::atol(argv[3]);; ++n) {
    const std::string id = "d" + std::to_string(rng() % test::kCrashIds);
    const bool remove = rng() % 4 == 0;
    const std::string what = std::string(remove ? "D " : "S ") + id + " " + std::to_string(n) +
                             "\n";
    say("? " + what);
    Status s;
    if (remove) {
      s = (*service)->documents().remove("default", id);
      if (s.code() == Code::kNotFound) s = {};
    } else {
      std::vector<DocumentInput> batch(1);
      batch[0].id = id;
      batch[0].text = test::crash_text(id, n);
      s = (*service)->submit("default", std::move(batch), {}).status();
      if (s.code() == Code::kResourceExhausted) continue;
    }
    if (!s.ok()) return std::fprintf(stderr, "%s\n", s.to_string().c_str()), 4;
    say("! " + what);
  }
}
