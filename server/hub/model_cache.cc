#include "server/hub/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "base/index.h"
#include "base/json_object.h"
#include "base/json_parse.h"
#include "server/hub/file_check.h"
#include "server/hub/hub_client.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kManifest = ".quire.json";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

Status disk_error(const std::string& what, const fs::path& path, int error) {
  const std::string message = what + " '" + path.string() + "': " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT)
    return Status::exhausted(message + "; QUIRE_CACHE may name a folder on another disk");
  return Status::io(message);
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string folder_name(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '/' ? std::string("--") : std::string(1, c);
  return out;
}

fs::path folder_of(const ModelReference& r, const fs::path& root) {
  return root / folder_name(r.repo) / folder_name(r.revision);
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return in ? std::string(std::istreambuf_iterator<char>(in), {}) : std::string();
}

Status write_text(const fs::path& path, const std::string& text) {
  const fs::path fresh = path.string() + ".new";
  std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out || ::rename(fresh.c_str(), path.c_str()) != 0)
    return disk_error("cannot write", path, errno);
  return {};
}

/// Manifest is the content of .quire.json: the complete files, and the path loaded for each
/// requested name.
struct Manifest {
  std::string repo, revision;
  std::vector<HubFile> files;
  std::vector<std::pair<std::string, std::string>>
      models;  ///< requested name (may be empty): path loaded (may be empty)

  const HubFile* find(const std::string& path) const {
    const auto it = std::find_if(files.begin(), files.end(),
                                 [&](const HubFile& f) { return f.path == path; });
    return it == files.end() ? nullptr : &*it;
  }
  /// Whether the file is needed by what is loaded from `model`.
  static bool is_of(const HubFile& file, const std::string& model) {
    return model.empty() ? !file.path.ends_with(".gguf") : group_of(file.path) == group_of(model);
  }
};

std::string text_of(const json::object& object, std::string_view key) {
  return string_at(object, key).value_or("");
}

Manifest read_manifest(const fs::path& folder) {
  Manifest m;
  json::value root;
  if (parse_json(read_text(folder / kManifest), root) || !root.is_object()) return m;
  m.repo = text_of(root.get_object(), "repo");
  m.revision = text_of(root.get_object(), "revision");
  if (const json::value* files = root.get_object().if_contains("files");
      files != nullptr && files->is_array()) {
    for (const json::value& item : files->get_array()) {
      if (!item.is_object()) continue;
      HubFile f{.path = text_of(item.get_object(), "path"),
                .sha256 = text_of(item.get_object(), "sha256"),
                .git_sha1 = text_of(item.get_object(), "git_sha1")};
      if (const json::value* size = item.get_object().if_contains("size")) {
        boost::system::error_code error;
        f.size = size->to_number<std::uint64_t>(error);
        if (error) continue;
      }
      m.files.push_back(std::move(f));
    }
  }
  if (const json::value* models = root.get_object().if_contains("models");
      models != nullptr && models->is_object()) {
    for (const auto& item : models->get_object()) {
      if (item.value().is_string()) m.models.emplace_back(item.key(), item.value().get_string());
    }
  }
  return m;
}

Status write_manifest(const fs::path& folder, const Manifest& m) {
  json::array files;
  for (const HubFile& f : m.files)
    files.push_back(
        {{"path", f.path}, {"size", f.size}, {"sha256", f.sha256}, {"git_sha1", f.git_sha1}});
  json::object models;
  for (const auto& [asked, path] : m.models) models[asked] = path;
  const json::object root{{"layout", 1},
                          {"repo", m.repo},
                          {"revision", m.revision},
                          {"files", std::move(files)},
                          {"models", std::move(models)}};
  return write_text(folder / kManifest, json::serialize(root) + "\n");
}

bool whole_on_disk(const fs::path& folder, const HubFile& f) {
  std::error_code ec;
  return fs::file_size(folder / f.path, ec) == f.size && !ec;
}

/// Waits for the lock of a folder and notifies the caller once.
Result<std::unique_ptr<File>> lock_folder(const fs::path& folder, bool wait,
                                          const HubOptions* options) {
  std::error_code ec;
  fs::create_directories(folder.parent_path(), ec);
  if (ec) return disk_error("cannot make the folder", folder.parent_path(), ec.value());
  const fs::path path = folder.string() + ".lock";
  auto file = std::make_unique<File>(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file->fd() < 0) return disk_error("cannot open", path, errno);
  if (::flock(file->fd(), LOCK_EX | LOCK_NB) == 0) return file;
  if (!wait) return Status::precondition("another process is fetching this model now");
  if (options != nullptr && options->on_progress)
    options->on_progress({.note = "another process is fetching this model; waiting for it"});
  while (::flock(file->fd(), LOCK_EX) != 0) {
    if (errno != EINTR) return disk_error("cannot lock", path, errno);
  }
  return file;
}

/// Fetch is one get_model().
class Fetch {
 public:
  Fetch(const ModelReference& r, const HubOptions& options)
      : r_(r), options_(options), client_(options), folder_(folder_of(r, options.root)) {}

  Result<std::string> run() {
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<File> lock, lock_folder(folder_, true, &options_));
    std::vector<HubFile> listed;
    QUIRE_RETURN_IF_ERROR(again([&](bool&) -> Status {
      QUIRE_ASSIGN_OR_RETURN(listed, client_.files(r_));
      return {};
    }));
    QUIRE_ASSIGN_OR_RETURN(const ChosenFiles chosen, choose_files(r_, listed));
    std::error_code ec;
    fs::create_directories(folder_, ec);
    if (ec) return disk_error("cannot make the folder", folder_, ec.value());
    manifest_ = read_manifest(folder_);
    manifest_.repo = r_.repo;
    manifest_.revision = r_.revision;
    std::vector<HubFile> missing;
    for (const HubFile& f : chosen.files) {
      const HubFile* known = manifest_.find(f.path);
      progress_.size += f.size;
      if (known != nullptr && promised_hash(*known) == promised_hash(f) &&
          whole_on_disk(folder_, f)) {
        progress_.bytes += f.size;
      } else {
        missing.push_back(f);
      }
    }
    QUIRE_RETURN_IF_ERROR(check_room(missing));
    // The manifest tells what an interrupted fetch belongs to.
    if (!missing.empty()) QUIRE_RETURN_IF_ERROR(write_manifest(folder_, manifest_));
    for (const HubFile& f : missing) QUIRE_RETURN_IF_ERROR(fetch(f));
    QUIRE_RETURN_IF_ERROR(remove_others(chosen));
    for (auto& [asked, model] : std::exchange(changing_, {})) {
      const bool same = !model.empty() && group_of(model) == group_of(chosen.model);
      manifest_.models.emplace_back(asked, same ? chosen.model : model);
    }
    std::erase_if(manifest_.models, [&](const auto& model) { return model.first == r_.file; });
    manifest_.models.emplace_back(r_.file, chosen.model);
    QUIRE_RETURN_IF_ERROR(write_manifest(folder_, manifest_));
    return chosen.model.empty() ? folder_.string() : (folder_ / chosen.model).string();
  }

 private:
  fs::path part_of(const HubFile& f) const {
    return (folder_ / f.path).string() + "." + promised_hash(f).substr(0, 16) + ".part";
  }

  Status check_room(const std::vector<HubFile>& missing) const {
    std::uint64_t needed = 0;
    for (const HubFile& f : missing) {
      std::error_code ec;
      const std::uint64_t have = fs::file_size(part_of(f), ec);
      needed += ec ? f.size : f.size - std::min(f.size, have);
    }
    struct statvfs disk {};
    if (::statvfs(folder_.c_str(), &disk) != 0) return {};
    const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (room >= needed) return {};
    return Status::exhausted("the disk is full: " + r_.text() + " needs " +
                             std::to_string(needed >> 20) + " MiB more, and " +
                             options_.root.string() + " has " + std::to_string(room >> 20) +
                             " MiB left; QUIRE_CACHE may name a folder on another disk");
  }

  /// Forgets, until all files are there, the models that the file belongs to: half of an old
  /// revision and half of a new one must not be taken for a model.
  Status begin_change(const HubFile& f) {
    const auto kept = std::stable_partition(
        manifest_.models.begin(), manifest_.models.end(),
        [&](const auto& model) { return !Manifest::is_of(f, model.second); });
    if (kept == manifest_.models.end()) return {};
    changing_.insert(changing_.end(), kept, manifest_.models.end());
    manifest_.models.erase(kept, manifest_.models.end());
    return write_manifest(folder_, manifest_);
  }

  /// Deletes files of the model that its repository no longer has, unless they were asked for by
  /// name: a loader would take old weights in one file before new ones in parts.
  Status remove_others(const ChosenFiles& chosen) {
    const std::string group = group_of(chosen.model);
    std::vector<HubFile> others;
    for (const HubFile& f : manifest_.files) {
      const auto is_it = [&](const HubFile& now) { return now.path == f.path; };
      const auto names_it = [&](const auto& model) {
        return group_of(model.second) != group && group_of(model.second) == group_of(f.path);
      };
      if (Manifest::is_of(f, chosen.model) && std::ranges::none_of(chosen.files, is_it) &&
          std::ranges::none_of(manifest_.models, names_it) &&
          std::ranges::none_of(changing_, names_it))
        others.push_back(f);
    }
    for (const HubFile& f : others) {
      QUIRE_RETURN_IF_ERROR(begin_change(f));
      std::error_code ec;
      fs::remove(folder_ / f.path, ec);
      if (ec) return disk_error("cannot delete", folder_ / f.path, ec.value());
      std::erase_if(manifest_.files, [&](const HubFile& old) { return old.path == f.path; });
    }
    return {};
  }

  /// Calls until success, a final failure, or too many attempts in a row without progress. `call`
  /// sets its argument if it made progress.
  Status again(const std::function<Status(bool&)>& call) {
    auto wait = options_.first_wait;
    for (int left = options_.attempts;;) {
      bool further = false;
      const Status s = call(further);
      if (s.ok() || s.code() != Code::kUnavailable) return s;
      if (further) {
        left = options_.attempts;
        wait = options_.first_wait;
      }
      // Without any connection, further attempts rarely help.
      if (s.field() == "network" && !further) left = std::min(left, 3);
      if (--left <= 0) return s;
      tell("trying again in " + std::to_string(std::max<std::int64_t>(1, wait.count() / 1000)) +
           " s: " + s.message());
      std::this_thread::sleep_for(wait);
      wait = std::min<std::chrono::milliseconds>(wait * 2, std::chrono::seconds(30));
    }
  }

  void tell(std::string note) {
    if (!options_.on_progress) return;
    progress_.note = std::move(note);
    options_.on_progress(progress_);
    progress_.note.clear();
  }

  Status fetch(const HubFile& f) {
    const fs::path target = folder_ / f.path, part = part_of(f);
    std::error_code ec;
    fs::create_directories(target.parent_path(), ec);
    if (ec) return disk_error("cannot make the folder", target.parent_path(), ec.value());
    progress_.file = f.path;
    progress_.file_size = f.size;
    progress_.file_bytes = 0;
    for (int round = 0;; ++round) {
      const Status s = again([&](bool& further) { return fetch_part(f, part, further); });
      if (!s.ok()) return s;
      QUIRE_ASSIGN_OR_RETURN(const bool right, check(f, part));
      if (right) break;
      fs::remove(part, ec);
      fs::remove(part.string() + ".etag", ec);
      progress_.bytes -= progress_.file_bytes;
      progress_.file_bytes = 0;
      if (round > 0) {
        return Status::corruption(
            r_.text() + ": " + f.path + " is not what the hub promises (" +
            (f.sha256.empty() ? "git SHA-1 " : "SHA-256 ") + promised_hash(f) +
            "); the repository changed meanwhile, or something on the way changes files");
      }
      tell(f.path + " has the wrong checksum; fetching it again from its beginning");
    }
    QUIRE_RETURN_IF_ERROR(begin_change(f));
    if (::rename(part.c_str(), target.c_str()) != 0)
      return disk_error("cannot write", target, errno);
    fs::remove(part.string() + ".etag", ec);
    std::erase_if(manifest_.files, [&](const HubFile& old) { return old.path == f.path; });
    manifest_.files.push_back(f);
    QUIRE_RETURN_IF_ERROR(write_manifest(folder_, manifest_));
    progress_.file_done = true;
    if (options_.on_progress) options_.on_progress(progress_);
    progress_.file_done = false;
    return {};
  }

  /// Fetches the missing bytes of a file and appends them to its part.
  Status fetch_part(const HubFile& f, const fs::path& part, bool& further) {
    const File file(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (file.fd() < 0) return disk_error("cannot write", part, errno);
    struct stat info {};
    if (::fstat(file.fd(), &info) != 0) return disk_error("cannot read", part, errno);
    auto have = static_cast<std::uint64_t>(info.st_size);
    if (have > f.size) have = 0;
    place(have);
    if (have == f.size && have > 0) return {};
    const fs::path etag_file = part.string() + ".etag";
    std::string etag = have > 0 ? read_text(etag_file) : std::string();
    if (f.size == 0) return {};
    started_ = Clock::now();
    start_bytes_ = have;
    const auto on_start = [&](std::uint64_t from) -> Status {
      if (::ftruncate(file.fd(), static_cast<off_t>(from)) != 0 ||
          ::lseek(file.fd(), static_cast<off_t>(from), SEEK_SET) < 0)
        return disk_error("cannot write", part, errno);
      have = start_bytes_ = from;
      place(have);
      return etag.empty() ? Status() : write_text(etag_file, etag);
    };
    const auto on_body = [&](std::string_view bytes) -> Status {
      if (have + bytes.size() > f.size)
        return Status::corruption(r_.text() + ": the hub sends more than " +
                                  std::to_string(f.size) + " bytes of " + f.path);
      for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t n = ::write(file.fd(), bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return disk_error("cannot write", part, errno);
        done += to_size(n);
      }
      further = true;
      have += bytes.size();
      place(have);
      show();
      return {};
    };
    const Status s = client_.fetch(r_, f, have, etag, on_start, on_body);
    if (!s.ok()) return s;
    if (have < f.size)
      return Status::unavailable("the hub sent only " + std::to_string(have) + " of " +
                                 std::to_string(f.size) + " bytes of " + f.path);
    if (::fsync(file.fd()) != 0) return disk_error("cannot write", part, errno);
    return {};
  }

  void place(std::uint64_t file_bytes) {
    progress_.bytes = progress_.bytes - progress_.file_bytes + file_bytes;
    progress_.file_bytes = file_bytes;
  }

  void show() {
    const auto now = Clock::now();
    if (!options_.on_progress || now - shown_ < std::chrono::milliseconds(200)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - started_).count();
    progress_.bytes_per_second = seconds > 0.05
                                     ? static_cast<double>(progress_.file_bytes - start_bytes_) /
                                           seconds
                                     : 0;
    options_.on_progress(progress_);
  }

  Result<bool> check(const HubFile& f, const fs::path& part) const {
    std::ifstream in(part, std::ios::binary);
    if (!in) return disk_error("cannot read", part, errno);
    FileHash hash(f);
    std::vector<char> buffer(std::size_t{1} << 20);
    std::uint64_t size = 0;
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
      hash.add({buffer.data(), to_size(in.gcount())});
      size += static_cast<std::uint64_t>(in.gcount());
    }
    if (in.bad()) return disk_error("cannot read", part, EIO);
    return size == f.size && hash.finish() == promised_hash(f);
  }

  const ModelReference r_;
  const HubOptions& options_;
  const HubClient client_;
  const fs::path folder_;
  Manifest manifest_;
  std::vector<std::pair<std::string, std::string>>
      changing_;  ///< of manifest_.models, left out until all files are there
  FetchProgress progress_;
  Clock::time_point started_, shown_;
  std::uint64_t start_bytes_ = 0;
};

/// Whether all files of what is loaded from `model` are there.
bool is_whole(const fs::path& folder, const Manifest& m, const std::string& model) {
  return std::ranges::all_of(m.files, [&](const HubFile& f) {
    return !Manifest::is_of(f, model) || whole_on_disk(folder, f);
  });
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code none;
    if (it->is_regular_file(none)) bytes += it->file_size(none);
  }
  return bytes;
}

}  // namespace

HubOptions HubOptions::from_environment() {
  HubOptions o;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty())
    o.endpoint = endpoint;
  while (o.endpoint.ends_with('/')) o.endpoint.pop_back();
  o.token = variable("HF_TOKEN");
  if (const std::string cache = variable("QUIRE_CACHE"); !cache.empty()) {
    o.root = cache;
  } else if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) {
    o.root = fs::path(xdg) / "quire/models";
  } else {
    const std::string home = variable("HOME");
    o.root = fs::path(home.empty() ? "/var/cache" : home + "/.cache") / "quire/models";
  }
  return o;
}

Result<std::string> get_model(const ModelReference& r, const HubOptions& options, bool update) {
  if (options.token.find_first_of("\r\n") != std::string::npos)
    return Status::invalid("HF_TOKEN", "HF_TOKEN holds a line break");
  if (!update) {
    const fs::path folder = folder_of(r, options.root);
    const Manifest m = read_manifest(folder);
    for (const auto& [asked, model] : m.models) {
      if (asked != r.file) continue;
      if (is_whole(folder, m, model))
        return model.empty() ? folder.string() : (folder / model).string();
    }
  }
  return Fetch(r, options).run();
}

std::vector<CachedModel> list_models(const fs::path& root) {
  std::vector<CachedModel> all;
  std::error_code ec;
  for (fs::directory_iterator repo(root, ec), end; !ec && repo != end; repo.increment(ec)) {
    std::error_code inner;
    for (fs::directory_iterator revision(repo->path(), inner); !inner && revision != end;
         revision.increment(inner)) {
      std::error_code none;
      if (!revision->is_directory(none)) continue;
      const Manifest m = read_manifest(revision->path());
      if (m.repo.empty()) continue;  // such as the embedded model, which is unpacked there
      const std::uint64_t bytes = bytes_in(revision->path());
      if (m.models.empty()) {
        const ModelReference r{.repo = m.repo, .revision = m.revision, .file = {}};
        all.push_back({r.text(), revision->path().string(), bytes, false});
      }
      for (const auto& [asked, model] : m.models) {
        const ModelReference r{.repo = m.repo, .revision = m.revision, .file = asked};
        std::uint64_t own = 0;
        for (const HubFile& f : m.files) own += Manifest::is_of(f, model) ? f.size : 0;
        all.push_back(
            {r.text(),
             model.empty() ? revision->path().string() : (revision->path() / model).string(),
             model.empty() ? bytes : own, is_whole(revision->path(), m, model)});
      }
    }
  }
  std::sort(all.begin(), all.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return all;
}

Result<std::uint64_t> remove_model(const ModelReference& r, const fs::path& root) {
  const fs::path folder = folder_of(r, root);
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    return Status::not_found("there is no " + r.text() + " in " + root.string() +
                             "; quire model list shows what there is");
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<File> lock, lock_folder(folder, false, nullptr));
  const std::uint64_t before = bytes_in(folder);
  Manifest m = read_manifest(folder);
  if (!r.file.empty()) {
    const auto model = std::find_if(m.models.begin(), m.models.end(), [&](const auto& row) {
      return row.first == r.file || row.second == r.file;
    });
    if (model == m.models.end())
      return Status::not_found("there is no " + r.text() + " in " + root.string() +
                               "; quire model list shows what there is");
    const std::string path = model->second;
    std::erase_if(m.models, [&](const auto& row) { return row.second == path; });
    if (!m.models.empty()) {
      for (const HubFile& f : m.files) {
        if (!Manifest::is_of(f, path)) continue;
        fs::remove(folder / f.path, ec);
        if (ec) return disk_error("cannot delete", folder / f.path, ec.value());
      }
      std::erase_if(m.files, [&](const HubFile& f) { return Manifest::is_of(f, path); });
      QUIRE_RETURN_IF_ERROR(write_manifest(folder, m));
      return before - std::min(before, bytes_in(folder));
    }
  }
  fs::remove_all(folder, ec);
  if (ec) return disk_error("cannot delete", folder, ec.value());
  return before;
}

}  // namespace quire::hub
