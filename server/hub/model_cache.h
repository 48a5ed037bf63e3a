/// Models fetched from a hub, kept in a folder of this machine.
///
/// Layout: <root>/<org>--<repo>/<revision>/ holds the files under their paths, ".quire.json" says
/// which are whole, and
/// "<path>.<hash>.part" is what a fetch that was cut short has so far. <revision>.lock beside the
/// folder is held (flock) by the process that writes it.
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

/// What a fetch tells while it goes on; called a few times in a second from the calling thread.
struct FetchProgress {
  std::string file;  ///< being fetched
  std::uint64_t file_bytes = 0, file_size = 0;
  std::uint64_t bytes = 0, size = 0;  ///< of all files
  double bytes_per_second = 0;
  std::string
      note;  ///< something a person should know ("waiting for ..."); then the rest is as before
  bool file_done = false;
};

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;           ///< empty: none
  std::filesystem::path root;  ///< the cache folder
  int attempts = 6;            ///< for each file, without a byte of progress between them
  std::chrono::milliseconds first_wait{
      1000};  ///< before the second attempt; doubles up to 30 seconds
  std::function<void(const FetchProgress&)> on_progress;

  /// HF_ENDPOINT, HF_TOKEN; $QUIRE_CACHE, else $XDG_CACHE_HOME/quire/models, else
  /// ~/.cache/quire/models.
  static HubOptions from_environment();
};

/// The path of the model: its folder, or of a GGUF file that file. With `update` the hub is asked
/// what the revision holds now and what is missing or changed is fetched; without, a model that is
/// whole is used as it is, and no network is needed.
///
/// Every byte is checked against the hub's SHA-256 (of small files: git's SHA-1) before a file gets
/// its name. A fetch that was cut short goes on where it ended. Other processes that want the same
/// model wait.
///
/// Errors: kInvalidArgument (a malformed name; 401 and 403: names HF_TOKEN), kNotFound (no such
/// repository, revision or file), kUnavailable (no network, after all attempts), kCorruption (the
/// bytes are not what the hub promised), kResourceExhausted (the disk is full), kIo.
Result<std::string> get_model(const ModelReference& reference, const HubOptions& options,
                              bool update);

struct CachedModel {
  std::string name;  ///< as get_model() takes it
  std::string path;
  std::uint64_t bytes = 0;
  bool whole = false;
};
/// In order of their names; empty where there is no cache folder.
std::vector<CachedModel> list_models(const std::filesystem::path& root);

/// Deletes what is kept of the repository at that revision; with a file, that file alone. Errors:
/// kNotFound, kFailedPrecondition (a process is fetching it), kIo. Returns the bytes that are free
/// now.
Result<std::uint64_t> remove_model(const ModelReference& reference,
                                   const std::filesystem::path& root);

}  // namespace quire::hub
