/// Turns measured rows into a table, JSON, and rows for plots and certificates.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/format/read_behind.h"
#include "fidelity/bootstrap.h"
#include "fidelity/runner.h"

namespace quire {

/// ReportRow holds means over the questions of one task (or "all") under one strategy, with 95 %
/// bootstrap intervals. em and f1 are NaN if no question has answers.
struct ReportRow {
  std::string strategy, task;
  bool approximate = false, default_settings = false;
  std::int64_t n = 0;          ///< questions measured
  std::int64_t n_answers = 0;  ///< questions with known answers
  /// Questions with known answers, answered by recompute, that this strategy was asked in vain: it
  /// could not take the prompt, or gave a likelihood or KL that is missing or not finite. No mean
  /// below holds them.
  std::int64_t n_failed = 0;
  Interval em, f1, agreement, kl, sequence_ratio, recompute_ratio, bytes_loaded, ttft_ms, decode_ms;
  /// Share of right answers, among those with known supporting documents, whose first citation
  /// names one.
  Interval cited;
  Interval moved, corrected;  ///< over the questions that have them
  Interval contains;
  Interval nll;           ///< nats a token of the first reference
  Interval support_kept;  ///< of suites that name what supports an answer
  Interval answer_kept;
  Interval cited_attention, cited_words;
  struct Span {
    Interval agreement, kl;
  };
  /// For long answers: every range of ReportContext::span_tokens, as many as the longest answer
  /// has.
  std::vector<Span> spans;
  /// Paired differences: this strategy minus recompute, question by question.
  Interval em_difference, f1_difference, contains_difference;
  /// The same of nll, as a mean without a tenth of the questions at either end; below 0: better.
  Interval nll_difference;
  /// Of recompute: what the documents are worth, as paired differences of the prompt without them
  /// and with them. Nats a token of nll, trimmed likewise, and share of answers that contain a
  /// reference.
  Interval worth_nll, worth_contains;
  /// Of recompute: `contains` minus the share of other questions' references that the same answer
  /// contains, which is what chance gives.
  Interval above_chance;
};

/// ReportContext describes what was measured, and with which model and settings.
struct ReportContext {
  std::string commit, date, cpu, isa, kernel;
  std::int64_t cores = 0, memory_bytes = 0;
  std::string model_name, model_path, fingerprint, fingerprint_hex, weights, kv_dtype;
  std::string draft_fingerprint, retrieval_head_fingerprint;  ///< hex; empty: there was none
  std::int64_t parameters = 0, max_model_len = 0;
  std::string suite, suite_hash;
  std::int64_t per_kind = 0, max_tokens = 0, chunk_tokens = 0, context_tokens = 0,
               related_tokens = 0, block_tokens = 0, span_tokens = 0;
  bool lead_in = false;
  ReadBehind read_behind;  ///< of all documents of the suite
  std::string choice;      ///< choice_settings() of certificate.h
  double temperature = 0;
  std::uint64_t seed = 1;
  std::string instruction;
  /// Rows by the build and instruction set that measured them, where there is more than one.
  std::map<std::string, std::size_t> builds;
};

struct Report {
  ReportContext context;
  std::vector<std::string> strategies, tasks;  ///< tasks without "all"
  std::vector<ReportRow> rows;                 ///< by strategy, "all" first
  std::vector<SkippedTask> skipped;            ///< tasks, and questions grouped by reason
  const ReportRow* find(const std::string& strategy, const std::string& task) const;
};

/// Makes the report; deterministic for the same measurements and seed.
Report make_report(const Suite& suite, const RunResult& run, ReportContext context,
                   const BootstrapOptions& bootstrap = {});

/// Returns {"name": "fidelity", "commit", "date", "machine", "model", "suite", "settings", "rows",
/// "details", "skipped"}. Each score is {"value", "low", "high"}, null if it is meaningless.
///
/// A row has exactly: strategy, task, n, em, f1, agreement, kl, sequence_ratio, recompute_ratio,
/// bytes_loaded, ttft_ms. `details` holds decode_ms, cited, moved, corrected and the differences to
/// recompute for the same rows. For long answers it also holds `spans`: [{"agreement", "kl"}], one
/// per settings.span_tokens tokens.
std::string report_json(const Report& report);
/// Returns a table for a terminal: one line per strategy, then exact match by task.
std::string report_table(const Report& report);

/// Returns "97.5 %", or "-" for NaN.
std::string percent(double value, int decimals = 1);

}  // namespace quire
