/// Keeps models fetched from a hub in a local folder.
///
/// Layout: <root>/<org>--<repo>/<revision>/ holds the files under their paths, ".quire.json" lists
/// the complete ones, and "<path>.<hash>.part" holds the bytes of an interrupted fetch.
/// <revision>.lock next to the folder is held (flock) by the process that writes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/hub/model_reference.h"

namespace quire::hub {

/// FetchProgress reports a fetch under way, a few times per second from the calling thread.
struct FetchProgress {
  std::string file;  ///< the file being fetched
  std::uint64_t file_bytes = 0, file_size = 0;
  std::uint64_t bytes = 0, size = 0;  ///< sums over all files
  double bytes_per_second = 0;
  std::string
      note;  ///< message for the user ("waiting for ..."); the other members are then unchanged
  bool file_done = false;
};

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;           ///< empty: none
  std::filesystem::path root;  ///< the cache folder
  int attempts = 6;            ///< per file, without a byte of progress between them
  std::chrono::milliseconds first_wait{
      1000};  ///< before the second attempt; doubles up to 30 seconds
  std::function<void(const FetchProgress&)> on_progress;

  /// Reads HF_ENDPOINT and HF_TOKEN. The root is $QUIRE_CACHE, else $XDG_CACHE_HOME/quire/models,
  /// else ~/.cache/quire/models.
  static HubOptions from_environment();
};

/// Returns the path of the model: its folder, or its GGUF file. With `update` it asks the hub for
/// the revision's current files and fetches those missing or changed. Without, a complete model is
/// used as it is, and no network is needed.
///
/// Every byte is checked against the hub's SHA-256 (small files: git's SHA-1) before a file gets
/// its name. An interrupted fetch continues where it ended. Other processes that want the same
/// model wait.
///
/// Errors: kInvalidArgument (a malformed name; 401 and 403: names HF_TOKEN), kNotFound (no such
/// repository, revision or file), kUnavailable (no network, after all attempts), kCorruption (the
/// bytes are not what the hub promised), kResourceExhausted (the disk is full), kIo.
Result<std::string> get_model(const ModelReference& reference, const HubOptions& options,
                              bool update);

struct CachedModel {
  std::string name;  ///< in the form that get_model() takes
  std::string path;
  std::uint64_t bytes = 0;
  bool whole = false;
};
/// Returns the models in order of their names; empty if there is no cache folder.
std::vector<CachedModel> list_models(const std::filesystem::path& root);

/// Deletes the local files of the repository at that revision, or with a file that file alone.
/// Returns the bytes freed. Errors: kNotFound, kFailedPrecondition (a process is fetching it), kIo.
Result<std::uint64_t> remove_model(const ModelReference& reference,
                                   const std::filesystem::path& root);

}  // namespace quire::hub
