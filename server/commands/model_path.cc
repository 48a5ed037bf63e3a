#include "server/commands/model_path.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/gguf/gguf.h"

namespace quire {
namespace fs = std::filesystem;
namespace {

/// A folder, or a GGUF file.
Result<std::string> check_model(const std::string& path, const std::string& says) {
  std::error_code ec;
  const auto gguf = find_gguf(path);
  if (!gguf.ok()) return gguf.status().with_context(says).with_field("model.path");
  if (*gguf || fs::is_directory(path, ec)) return path;
  const bool hub = path.find('/') == path.rfind('/') && path.find('/') != std::string::npos && path.front() != '/' && path.front() != '.';
  return Status::not_found(says + ": no model folder or GGUF file at " + path +
                           (hub ? "; nothing is fetched from a hub: if this is a name there, download the model and give the path of its folder or .gguf file" : ""))
      .with_field("model.path");
}

}  // namespace

Result<std::string> find_model_path(const std::string& asked) {
  std::error_code ec;
  if (!asked.empty()) return check_model(asked, "model.path");
  if (const char* dir = std::getenv("QUIRE_MODEL_DIR"); dir && *dir) return check_model(dir, "QUIRE_MODEL_DIR");
  const fs::path binary = fs::read_symlink("/proc/self/exe", ec);
  const fs::path folder = binary.parent_path();
  std::string looked;
  for (const auto* relative : {"../../models/demo", "../share/quire/models/demo", "models/demo", "../models/demo"}) {
    const fs::path candidate = (folder / relative).lexically_normal();
    if (fs::is_regular_file(candidate / "config.json", ec)) return candidate.string();
    looked += "\n  " + candidate.string();
  }
  return Status::not_found("the embedded model was not found; set model.path (or QUIRE_MODEL_DIR) to a Hugging Face model folder or a GGUF file. Looked at:" + looked).with_field("model.path");
}

std::string find_model_part(const std::string& asked, const std::string& model_path, const std::string& part) {
  if (asked == "none") return "";
  if (!asked.empty()) return asked;
  const fs::path folder = fs::path(model_path) / part;
  std::error_code ec;
  return fs::is_regular_file(folder / "config.json", ec) ? folder.string() : "";
}

int complain(const std::string& message) {
  std::fprintf(stderr, "quire: %s\n", message.c_str());
  return 1;
}

int complain(const Status& status) {
  const std::string field = status.field().empty() || status.message().find(status.field()) != std::string::npos ? "" : status.field() + ": ";
  return complain(field + status.message());
}

}  // namespace quire
