/// This file declares the interface of the stages that a query runs through.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "engine/sample/sampler.h"

namespace quire {

class DecodeStage;
class QueryStage;

/// What follows a stage that is done: another stage, or the end of the query.
struct AfterStage {
  std::unique_ptr<QueryStage> stage;  ///< null: the query ends as the members below say
  Status status;
  FinishReason reason = FinishReason::kStop;
};

/// One stage of a query. It owns what no other stage needs, and hands the rest to its successor.
/// Threads: the engine thread.
class QueryStage {
 public:
  QueryStage() = default;
  virtual ~QueryStage() = default;
  QueryStage(const QueryStage&) = delete;
  QueryStage& operator=(const QueryStage&) = delete;

  /// Does what needs no turn of its own. It is called once, right after the previous stage, and
  /// takes no pages while the query waits for its turn. Errors end the query.
  virtual Status begin() { return {}; }
  /// Returns whether step() has work; else the stage waits for the store or the draft.
  virtual bool ready() { return true; }
  /// Computes one chunk, or places one context. Errors end the query.
  virtual Status step() { return {}; }
  /// Returns whether the stage is over; valid after begin().
  virtual bool done() const = 0;
  /// Returns what follows. It is called once, after which the stage is only destroyed.
  virtual AfterStage next() = 0;

  /// Returns whether step() runs the model, so that its time tells how fast the model is.
  virtual bool runs_model() const { return true; }
  /// Returns whether a passed deadline ends the query in this stage.
  virtual bool ends_at_deadline() const { return true; }
  /// Returns this stage if it is the one whose rows belong in decode steps, which then replace
  /// step(); else null.
  virtual DecodeStage* decode() { return nullptr; }
  /// Is called once if the query ends in this stage, before anything is released. While the query
  /// is suspended, its cache has no pages.
  virtual void query_ends(Clock::time_point /*now*/, bool /*suspended*/) {}
};

}  // namespace quire
