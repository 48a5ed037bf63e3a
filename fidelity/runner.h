/// Asks every question of a suite under every strategy, through the engine and the document service
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

/// Positions of the answer over which KL is averaged.
inline constexpr std::size_t kKlPositions = 16;

struct RunOptions {
  std::vector<StrategySpec> strategies;  ///< `recompute` is always measured, named or not
  std::int64_t per_kind = 0;             ///< questions of each kind; 0: all
  std::uint64_t seed = 1;                ///< of that choice
  std::int32_t max_tokens = 32;          ///< of answers whose record names no limit
  std::int32_t chunk_tokens = 512;       ///< documents are cut as POST /v1/documents cuts them
  /// 0: answers end where the model ends them. Else they go on to max_tokens whatever would end
  /// them, are not scored, and every strategy is held to recompute's tokens: agreement and KL are
  /// of all positions, and of each stretch of so many (Measurement::spans). Holds two answers'
  /// logits meanwhile: max_tokens * vocabulary * 8 bytes.
  std::int32_t span_tokens = 0;
  /// Of recompute's tokens where answers are long, drawn by `seed`; 0: greedy
  double temperature = 0;
  /// Becomes true: the run ends with kCancelled; finished rows are kept
  const std::atomic<bool>* stop = nullptr;
};

struct RunProgress {
  std::int64_t done = 0, total = 0;  ///< rows: questions times strategies
  std::string task, strategy;
};

/// rows[question][strategy], as `questions` and `strategies`.
struct RunResult {
  std::vector<StrategySpec> strategies;  ///< recompute first
  std::vector<std::size_t> questions;    ///< indices of the suite's records
  std::vector<std::vector<Measurement>> rows;
};

/// For each question: the documents are ingested (and those no later question wants are removed
/// again), recompute answers greedily, then every other strategy runs once with recompute's tokens
/// forced (KL, times, bytes) and, if its own choice differs anywhere, once freely (answer,
/// agreement; not where answers are long). A prompt beyond the window is a skipped row. Rows come
/// from and go to `state`. `ns` is the namespace the documents live in meanwhile. Errors:
/// kCancelled; kInvalidArgument (no question, options); those of the engine and the document
/// service.
Result<RunResult> run_suite(Engine& engine, IngestService& ingest, const std::string& ns,
                            const Suite& suite, const RunOptions& options, StateFile& state,
                            const std::function<void(const RunProgress&)>& on_progress = {});

/// Tokens of the record's whole prompt: each part encoded as the run does, headers of chunks
/// estimated by the cut.
Result<std::int64_t> prompt_tokens(const Engine& engine, const SuiteRecord& record,
                                   std::int32_t chunk_tokens);

}  // namespace quire
