/// Reads files in a child process, the program quire-reader, which has no network, may write no
/// file, and is limited in time and memory. A hostile or broken file costs only itself.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "readers/read_document.h"

namespace quire {

/// Starts one child for each file. Threads: any number may use one object.
class ReaderProcess {
 public:
  /// `program` is the path of quire-reader.
  explicit ReaderProcess(std::filesystem::path program) : program_(std::move(program)) {}

  /// Finds quire-reader: where the environment variable QUIRE_READER says, beside this program, or
  /// in ../libexec/quire. Errors: kNotFound, with the places in the message; kInvalidArgument with
  /// field QUIRE_READER (it names no program).
  static Result<ReaderProcess> find();

  /// Reads the regular file at `path`. Blocks for at most limits.wall_seconds. Errors, whose
  /// messages begin with request.name: kNotFound (no file, or no text in it), kIo, kInvalidArgument
  /// (it is not what its type says), kFailedPrecondition (protected by a password), kUnimplemented
  /// (a type that is not read), kResourceExhausted (past a limit), kInternal (the reader crashed).
  Result<std::vector<ReadDocument>> read_file(const std::filesystem::path& path,
                                              const ReaderRequest& request) const;
  /// The same for bytes in memory.
  Result<std::vector<ReadDocument>> read_bytes(std::string_view bytes,
                                               const ReaderRequest& request) const;

 private:
  Result<std::vector<ReadDocument>> run(int file, const ReaderRequest& request) const;

  std::filesystem::path program_;
};

}  // namespace quire
