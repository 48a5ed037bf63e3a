// After kill -9 at random moments of ingest and delete, every acknowledged document is stored whole
// and nothing is half-visible.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <set>
#include <sstream>

#include "tests/scenario/store/crash_history.h"

namespace quire {
namespace {

using test::keys_of_nonce;
using Clock = std::chrono::steady_clock;

/// The documents that must be in the store, id -> nonce, and per thread the operation that was
/// begun but not acknowledged.
struct History {
  struct Begun {
    std::string id;
    std::optional<std::uint64_t> nonce;  ///< empty: a delete
  };
  std::map<std::string, std::uint64_t> documents;
  std::map<int, Begun> open;
  int acknowledged = 0;
  bool ready = false;

  void line(const std::string& text) {
    std::istringstream in(text);
    std::string what, op;
    int thread = 0;
    in >> what;
    if (what == "R") ready = true;
    if (what == "E") ADD_FAILURE() << text;
    if (what == "B") {
      Begun b;
      std::uint64_t nonce = 0;
      in >> thread >> op >> b.id >> nonce;
      if (op == "put") b.nonce = nonce;
      open[thread] = b;
    }
    if (what == "A") {
      in >> thread;
      apply(open.at(thread));
      open.erase(thread);
      ++acknowledged;
    }
  }
  void apply(const Begun& b) {
    if (b.nonce) {
      documents[b.id] = *b.nonce;
    } else {
      documents.erase(b.id);
    }
  }
};

/// Runs the child until `alive` after it is ready, kills it, and reads the rest of its output.
void run_and_kill(const std::string& path, std::uint64_t seed, std::chrono::microseconds alive,
                  History* history) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const std::string seed_text = std::to_string(seed);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(fds[1], STDOUT_FILENO);
    ::close(fds[0]);
    ::close(fds[1]);
    ::execl(QUIRE_CRASH_CHILD, QUIRE_CRASH_CHILD, path.c_str(), seed_text.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(fds[1]);
  std::string buffer;
  Clock::time_point kill_at = Clock::now() +
                              std::chrono::seconds(30);  // limit for a child that never gets ready
  bool killed = false;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(kill_at - Clock::now());
    if (!killed && left.count() <= 0) {
      ::kill(child, SIGKILL);
      killed = true;
    }
    pollfd p{fds[0], POLLIN, 0};
    const timespec wait{
        0, killed ? 100'000'000 : std::max<long>(0, std::min<long>(left.count(), 900'000)) * 1000};
    if (::ppoll(&p, 1, &wait, nullptr) == 0) continue;
    char chunk[4096];
    const ssize_t n = ::read(fds[0], chunk, sizeof chunk);
    if (n <= 0) break;
    buffer.append(chunk, static_cast<std::size_t>(n));
    for (std::size_t end; (end = buffer.find('\n')) != std::string::npos;
         buffer.erase(0, end + 1)) {
      const bool was_ready = history->ready;
      history->line(buffer.substr(0, end));
      if (history->ready && !was_ready) kill_at = Clock::now() + alive;
    }
  }
  ::close(fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "the child ended by itself: " << status;
}

void check_store(const std::string& path, History* h) {
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  auto opened = open_store(options);
  ASSERT_OK(opened);
  Store& store = **opened;
  // An operation that was begun has happened or not; there is nothing in between.
  for (const auto& [thread, begun] : h->open) {
    auto head = store.get_document_head("default", begun.id);
    ASSERT_TRUE(head.ok() || head.code() == Code::kNotFound) << test::text(head);
    const bool happened = begun.nonce ? head.ok() && head->title == std::to_string(*begun.nonce)
                                      : !head.ok();
    if (happened) h->apply(begun);
  }
  h->open.clear();
  h->ready = false;
  std::set<std::uint64_t> keys;
  for (const auto& [id, nonce] : h->documents) {
    auto m = store.get_document("default", id);
    ASSERT_TRUE(m.ok()) << id << " was acknowledged: " << test::text(m);
    EXPECT_EQ(m->title, std::to_string(nonce));
    const auto want = test::manifest_of_nonce(id, nonce);
    ASSERT_EQ(m->chunks.size(), want.chunks.size());
    for (std::size_t i = 0; i < want.chunks.size(); ++i) {
      EXPECT_EQ(m->chunks[i].token_ids, want.chunks[i].token_ids);
      EXPECT_EQ(m->chunks[i].key, want.chunks[i].key);
    }
    EXPECT_EQ(store.get_text("default", id).value_or(""), test::text_of_nonce(id, nonce));
    for (auto key : keys_of_nonce(nonce)) keys.insert(key);
  }
  auto list = store.list_documents("default", {.limit = 1000});
  ASSERT_OK(list);
  EXPECT_EQ(list->documents.size(), h->documents.size());
  for (std::uint64_t n = 0; n < 5; ++n) {
    ListOptions some;
    some.limit = 1000;
    some.metadata = {{"n", std::to_string(n)}};
    list = store.list_documents("default", some);
    ASSERT_OK(list);
    const auto expected = std::ranges::count_if(
        h->documents, [&](const auto& document) { return document.second % 5 == n; });
    EXPECT_EQ(std::ssize(list->documents), expected) << "the index is that of the documents";
  }
  // A text waits only for a commit that was begun.
  const auto waiting = store.list_waiting_texts();
  ASSERT_OK(waiting);
  EXPECT_LE(waiting->size(), 2u);
  ASSERT_OK(store.delete_waiting_texts(*waiting));
  for (auto key : keys) {
    auto handle = store.find_segment(test::key_of(key));
    ASSERT_TRUE(handle) << "the KV of an acknowledged document is gone: " << key;
    EXPECT_OK(test::check_segment(store, *handle, key, test::kCrashShape));
  }
  EXPECT_EQ(store.stats().segments, keys.size())
      << "segments nobody references are collected at open";
  auto gc = store.gc();
  ASSERT_OK(gc);
  EXPECT_EQ(gc->segments_freed + gc->files_freed, 0u);
  EXPECT_EQ(store.stats().integrity_failures, 0u);
}

TEST(StoreCrash, KilledAtRandomMomentsItLosesNothingAcknowledged) {
  test::TempFolder folder;
  History history;
  std::mt19937_64 rng(99);
  const int rounds = test::env_int("QUIRE_CRASH_ROUNDS", 25);
  std::uint64_t longest_us = 150'000;
  for (int round = 0; round < rounds; ++round) {
    const int before = history.acknowledged;
    run_and_kill(folder.path(), static_cast<std::uint64_t>(round),
                 std::chrono::microseconds(rng() % longest_us), &history);
    if (history.acknowledged == before)
      // A slow machine needs longer to do something that can be lost.
      longest_us = longest_us * 3 / 2;
    if (HasFatalFailure()) return;
    check_store(folder.path(), &history);
    if (HasFatalFailure() || HasNonfatalFailure()) {
      std::printf("failed in round %d\n", round);
      return;
    }
  }
  std::printf("%d rounds, %d acknowledged changes, %zu documents at the end\n", rounds,
              history.acknowledged, history.documents.size());
  EXPECT_GT(history.acknowledged, rounds);
}

}  // namespace
}  // namespace quire
