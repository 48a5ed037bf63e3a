/// The workloads of `quire bench`: made-up documents and the questions over them, after those that
/// LMCache measures with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

enum class BenchKind : std::uint8_t {
  kLongDocuments,  ///< each request asks over one document of several
  kPermutations,   ///< each request asks over all documents in another order
  kChat,           ///< users in conversations of several rounds that begin with one text
};

struct BenchShape {
  BenchKind kind = BenchKind::kLongDocuments;
  std::int64_t documents = 8;  ///< not for kChat
  std::int64_t words = 300;    ///< of a document; for kChat of what conversations begin with
  std::int64_t requests = 32;  ///< not for kChat
  std::int64_t users = 4, rounds = 5;  ///< for kChat
  std::uint64_t seed = 1;              ///< the same seed gives the same texts and orders
};

struct BenchDocument {
  std::string id, title, text;
};
struct BenchTurn {
  std::vector<std::string> document_ids;  ///< in prompt order
  std::string question;
};
/// A session is asked turn by turn. Sessions are independent of each other.
struct Workload {
  std::vector<BenchDocument> documents;
  std::string opening;  ///< first user message of every session begins with it; empty: nothing
  std::vector<std::vector<BenchTurn>> sessions;
  std::size_t num_turns() const;
};

/// Makes a workload. Ids of documents begin with "bench-" and the seed. No order of kPermutations
/// comes twice before all came once.
Workload make_workload(const BenchShape& shape);

}  // namespace quire
