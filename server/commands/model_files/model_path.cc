#include "server/commands/model_files/model_path.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/gguf/gguf.h"
#include "server/commands/model_files/embedded_model.h"
#include "server/commands/model_files/model_fetch.h"
#include "server/hub/model_reference.h"

namespace quire {
namespace fs = std::filesystem;
namespace {

/// Resolves a model by the user's name for it: a folder, a GGUF file, or a model on the hub. `what`
/// is the source of the name.
Result<std::string> named_model(const std::string& asked, const std::string& what,
                                FromHub from_hub) {
  std::error_code ec;
  if (!hub::is_reference(asked)) {
    const auto gguf = find_gguf(asked);
    if (!gguf.ok())
      return gguf.status()
          .with_context(what.empty() ? "model.path" : what)
          .with_field("model.path");
    if (*gguf || fs::is_directory(asked, ec)) return asked;
  }
  if (hub::is_reference(asked)) {
    if (from_hub == FromHub::kFetch) {
      auto path = fetch_model(asked, /*update=*/false);
      if (!path.ok() && path.status().field() != "HF_TOKEN" &&
          path.status().field() != "HF_ENDPOINT")
        return path.status().with_field("model.path");
      return path;
    }
    const auto reference = hub::parse_reference(asked);
    if (!reference.ok()) return reference.status().with_field("model.path");
    return asked;
  }
  std::string message = what + "no model folder or GGUF file at " + asked;
  if (hub::looks_like_repo(asked)) message += "; did you mean hf:" + asked + "?";
  return Status::not_found(message).with_field("model.path");
}

}  // namespace

Result<std::string> find_model_path(const std::string& asked, FromHub from_hub) {
  std::error_code ec;
  if (!asked.empty()) return named_model(asked, "", from_hub);
  if (const char* dir = std::getenv("QUIRE_MODEL_DIR"); dir && *dir)
    return named_model(dir, "QUIRE_MODEL_DIR: ", from_hub);
  const fs::path binary = fs::read_symlink("/proc/self/exe", ec);
  const fs::path folder = binary.parent_path();
  std::string looked;
  for (const auto* relative :
       {"../../models/demo", "../share/quire/models/demo", "models/demo", "../models/demo"}) {
    const fs::path candidate = (folder / relative).lexically_normal();
    if (fs::is_regular_file(candidate / "config.json", ec)) return candidate.string();
    looked += "\n  " + candidate.string();
  }
  auto unpacked = unpack_embedded_model();
  if (unpacked.ok() || unpacked.code() != Code::kNotFound) return unpacked;
  return Status::not_found(
             "the embedded model was not found; set model.path (or QUIRE_MODEL_DIR) to a Hugging "
             "Face model folder, a GGUF file, or hf:org/repo. Looked at:" +
             looked)
      .with_field("model.path");
}

std::string find_model_part(const std::string& asked, const std::string& model_path,
                            const std::string& part) {
  if (asked == "none") return "";
  if (!asked.empty()) return asked;
  const fs::path folder = fs::path(model_path) / part;
  std::error_code ec;
  return fs::is_regular_file(folder / "config.json", ec) ? folder.string() : "";
}

void keep_files_private() { (void)::umask(::umask(0) | 0077); }

int complain(const std::string& message) {
  std::fprintf(stderr, "quire: %s\n", message.c_str());
  return 1;
}

int complain(const Status& status) {
  const std::string field = status.field().empty() ||
                                    status.message().find(status.field()) != std::string::npos
                                ? ""
                                : status.field() + ": ";
  return complain(field + status.message());
}

}  // namespace quire
