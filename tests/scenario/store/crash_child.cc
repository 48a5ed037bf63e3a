// Ingests and deletes documents until it is killed. Standard output says what it begins and what
// was acknowledged.
//   crash_child STORE SEED
// Lines: "B thread put|delete id nonce" before an operation, "A thread" after it. crash_history.h
// says what a nonce means.
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <thread>

#include "tests/scenario/store/crash_history.h"

namespace quire::test {
namespace {

std::mutex g_out;  // guards each line, which is one write
void say(const std::string& line) {
  std::lock_guard lock(g_out);
  const std::string out = line + "\n";
  if (::write(STDOUT_FILENO, out.data(), out.size()) < 0) ::_exit(3);
}

[[noreturn]] void fail(const std::string& what, const Status& s) {
  say("E " + what + ": " + s.to_string());
  ::_exit(2);
}

void work(Store& store, int thread, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (;;) {
    const std::string id = "t" + std::to_string(thread) + "-" + std::to_string(rng() % 12);
    const bool remove = rng() % 10 < 3;
    const std::uint64_t nonce = rng() % 1'000'000;
    say("B " + std::to_string(thread) + (remove ? " delete " : " put ") + id + " " +
        std::to_string(nonce));
    if (remove) {
      const Status s = store.delete_document("default", id);
      if (!s.ok() && s.code() != Code::kNotFound) fail("delete " + id, s);
    } else {
      Status s;
      do {  // repeats because the other thread may be writing the same context
        s = put_history(store, id, nonce);
      } while (s.code() == Code::kUnavailable || s.code() == Code::kAlreadyExists);
      if (!s.ok()) fail("put " + id, s);
    }
    say("A " + std::to_string(thread));
  }
}

}  // namespace
}  // namespace quire::test

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  quire::StoreOptions options;
  options.path = argv[1];
  options.dram_bytes = 1 << 20;
  auto store = quire::open_store(options);
  if (!store.ok()) quire::test::fail("open", store.status());
  const std::uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  quire::test::say("R");
  std::thread other([&] { quire::test::work(**store, 1, seed * 2 + 1); });
  quire::test::work(**store, 0, seed * 2);
}
