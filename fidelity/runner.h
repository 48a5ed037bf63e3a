/// Runs every question of a suite under every strategy, through the engine and the document service
/// that the server uses.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "fidelity/measurement.h"
#include "fidelity/state_file.h"
#include "fidelity/strategy_spec.h"
#include "fidelity/suite.h"
#include "ingest/ingest_service.h"

namespace quire {

/// Number of the answer's first positions over which KL is averaged.
inline constexpr std::size_t kKlPositions = 16;

struct RunOptions {
  std::vector<StrategySpec> strategies;  ///< `recompute` is always measured, named or not
  std::int64_t per_kind = 0;             ///< questions per kind; 0: all
  std::uint64_t seed = 1;                ///< seed for that choice
  std::int32_t max_tokens = 32;          ///< for answers whose record sets no limit
  std::int32_t chunk_tokens = 512;       ///< documents are cut as by POST /v1/documents
  std::int32_t context_tokens = 4096;    ///< and chunks see those before them; 0: each alone
  /// and they see chunks of other documents of the suite and a lead-in (ChunkingOptions)
  std::int32_t related_tokens = 0;
  bool lead_in = false;  ///< questions over a document without room for it are skipped
  /// 0: answers end where the model ends them. Otherwise they continue to max_tokens in any case,
  /// are not scored, and every strategy is forced to recompute's tokens. Agreement and KL then
  /// cover all positions, and each range of this many (Measurement::spans). The run holds the
  /// logits of two answers: max_tokens * vocabulary * 8 bytes.
  std::int32_t span_tokens = 0;
  /// Temperature of recompute's tokens for long answers, sampled by `seed`; 0: greedy.
  double temperature = 0;
  /// Once true, the run ends with kCancelled; finished rows are kept.
  const std::atomic<bool>* stop = nullptr;
};

struct RunProgress {
  std::int64_t done = 0, total = 0;  ///< in rows: questions times strategies
  std::string task, strategy;
};

/// rows[question][strategy], in the order of `questions` and `strategies`.
struct RunResult {
  std::vector<StrategySpec> strategies;  ///< recompute first
  std::vector<std::size_t> questions;    ///< indices of the suite's records
  std::vector<std::vector<Measurement>> rows;
  std::vector<SkippedTask> repeated;  ///< kinds with questions that repeat an earlier one
};

/// Measures each distinct question. Its documents are ingested, and those that no later question
/// needs are removed again. Recompute answers greedily; then every other strategy runs once with
/// recompute's tokens forced (KL, times, bytes). If its own choice differs anywhere, it runs once
/// more freely (answer, agreement), except for long answers. Each strategy also runs once with the
/// tokens of the record's first answer forced (nll).
///
/// With related_tokens all documents of the suite are stored first, without KV, and stay until the
/// run has ended, so that any of them may be related to any other.
///
/// A prompt beyond the window is a skipped row. Rows are read from and written to `state`. `ns` is
/// the namespace that holds the documents during the run. Errors: kCancelled; kInvalidArgument (no
/// question, options); those of the engine and the document service.
Result<RunResult> run_suite(Engine& engine, IngestService& ingest, const std::string& ns,
                            const Suite& suite, const RunOptions& options, StateFile& state,
                            const std::function<void(const RunProgress&)>& on_progress = {});

/// Returns the tokens of the record's whole prompt. Each part is encoded as in the run; the headers
/// of chunks are estimated from the cut.
Result<std::int64_t> prompt_tokens(const Engine& engine, const SuiteRecord& record,
                                   std::int32_t chunk_tokens);

}  // namespace quire
