#!/usr/bin/env bash
# The Debian packages in bare systems: built and installed by the commands of the Containerfiles, run, linked with,
# upgraded and removed. Needs root, debootstrap and Debian's archive; exit status 4: skipped.
# Usage: bare_system.sh SOURCE WORK [BUILD]: WORK is recreated. BUILD is a build of the preset `packages`: its packages
# are tested, and no bare system builds any.
set -euo pipefail
source=$1 work=$2
if [[ -z ${DP_OWN_MOUNTS:-} ]]; then
  for program in debootstrap unshare git; do
    command -v $program >/dev/null || { echo "skipped: there is no $program"; exit 4; }
  done
  unshare --mount true 2>/dev/null || { echo "skipped: only root can mount"; exit 4; }
  DP_OWN_MOUNTS=1 exec unshare --mount bash "$0" "$@"  # all mounts end with it
fi

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'bare_system: %s\n' "$*" >&2; exit 1; }
# inside [chroot's options] ROOT COMMAND...: pip trusts the certificates that this machine trusts.
inside() {
  env -i ${https_proxy:+https_proxy="$https_proxy"} DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root PIP_CERT=/host.crt \
    PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$@"
}

rm -rf --one-file-system "$work"
mkdir -p "$work"
debootstrap --variant=minbase bookworm "$work/base" >"$work/debootstrap.log" ||
  { tail -3 "$work/debootstrap.log"; echo "skipped: debootstrap could not make a system"; exit 4; }

# system NAME: another bare system, in $work/NAME.
system() {
  cp -a "$work/base" "$work/$1"
  mount -t proc proc "$work/$1/proc"
  mount --rbind /dev "$work/$1/dev"
  cp /etc/resolv.conf "$work/$1/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$work/$1/host.crt" 2>/dev/null || true
  cp /etc/apt/apt.conf.d/*proxy* "$work/$1/etc/apt/apt.conf.d/" 2>/dev/null || true
}

# stage FILE N ROOT: runs stage N of a Containerfile in ROOT. What its ENTRYPOINT starts remains in `entry`, the user
# in `user`, the folder in `folder`. The plugin for GPUs is not compiled: the build is only configured.
stage() {
  local file=$source/docs/guide/examples/$1 wanted=$2 root=$3 at=0 line
  user=root folder=/ entry=
  while read -r line; do
    [[ $line != FROM\ * ]] || at=$((at + 1))
    ((at == wanted)) || continue
    say "$line"
    case $line in
      "FROM docker.io/library/debian:bookworm"* | "" | \#*) ;;
      "COPY . /src")
        mkdir -p "$root/src"
        git -C "$source" -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
          (cd "$source" && tar --null --ignore-failed-read -cT - 2>/dev/null) | tar -xC "$root/src" ;;
      "COPY --from=build /src/build/packages/"*)
        mkdir -p "$root/packages"
        cp "$work"/packages/1/*.deb "$root/packages/" ;;
      "RUN /src/dev packages -DDP_CUDA=ON") inside "$root" sh -c "/src/dev deps && cd /src && cmake --preset packages -DDP_CUDA=ON" ;;
      "RUN "*) inside "$root" sh -c "${line#RUN }" ;;
      "USER "*) user=${line#USER } ;;
      "WORKDIR "*) folder=${line#WORKDIR } ;;
      "ENV "*) ;;
      'ENTRYPOINT ["'*'"]') entry=${line#*\"} entry=${entry%\"*} ;;
      *) fail "$1 has a line that this test does not know: $line" ;;
    esac
  done <"$file"
}

mkdir -p "$work/packages/1" "$work/packages/2"
if [[ -n ${3:-} ]]; then
  pack() { cpack --config "$3/CPackConfig.cmake" -D CPACK_DEBIAN_PACKAGE_RELEASE="$1" -B "$2"; }
  for revision in 1 2; do pack $revision "$work/packages/$revision" "$3" >"$work/cpack.log"; done
else
  say "the first stage of docs/guide/examples/Containerfile"
  system build
  if cache=$(ccache -k cache_dir 2>/dev/null) && [[ -d $cache ]]; then
    mkdir -p "$work/build/root/.cache/ccache"
    mount --bind "$cache" "$work/build/root/.cache/ccache"
  fi
  stage Containerfile 1 "$work/build"
  mv "$work"/build/src/build/packages/*.deb "$work/packages/1/"
  inside "$work/build" cpack --config /src/build/packages/CPackConfig.cmake -D CPACK_DEBIAN_PACKAGE_RELEASE=2 -B /packages >"$work/cpack.log"
  mv "$work"/build/packages/*.deb "$work/packages/2/"
fi
names=()
for package in "$work"/packages/1/*.deb; do
  names+=("$(dpkg-deb -f "$package" Package)")
  say "$(basename "$package")"
  dpkg-deb -f "$package" Package Version Depends Installed-Size
  dpkg-deb -c "$package" | awk '{print $1, $2, $3, $6, $7, $8}'
done
say "the last stage of docs/guide/examples/Containerfile"
system run
stage Containerfile 2 "$work/run"
inside --userspec=$user "$work/run" sh -c "cd $folder && HOME=$folder $entry --epochs 1 --cpu 2 --output-dir runs/first"
inside "$work/run" dp_train --help
inside "$work/run" dp_train env

say "the toolkit of docs/guide/examples/Containerfile.cuda"
system cuda
stage Containerfile.cuda 1 "$work/cuda" | tee "$work/cuda.log"
grep "CUDA 13.0" "$work/cuda.log" || fail "the build does not find the toolkit"
umount "$work/cuda/proc"
umount -R "$work/cuda/dev"
rm -rf --one-file-system "$work/cuda"

say "install in a system with a compiler"
system user
root=$work/user
# The files of the system. Not listed: caches, logs, the lists of apt and dpkg, and the files of adduser, which Debian's
# openssh-client (needed by Open MPI) calls.
files() { (cd "$root" && find . -xdev \( -path './etc/*-' -o -path ./run -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/apt -o -path ./var/lib/dpkg -o -path ./packages \
  -o -path ./tmp -o -path ./proc -o -path ./dev \) -prune -o -print | sort); }
inside "$root" apt-get update -qq
inside "$root" apt-get install -y -qq --no-install-recommends g++ cmake make pkg-config >/dev/null
files >"$work/files.before"
cp -r "$work/packages" "$root/packages"
inside "$root" sh -c 'apt-get install -y -qq --no-install-recommends /packages/1/*.deb' >/dev/null
inside "$root" dpkg-query -W -f '${Package} ${Version} ${Status}\n' "${names[@]}"

say "the library shows what the headers declare"
visible() { inside "$root" nm -DC --defined-only "/usr/lib/x86_64-linux-gnu/$1" | sed 's/^[0-9a-f]* //'; }
visible libdp.so >"$work/visible"
wc -l <"$work/visible"
if grep -E '^. ([a-z ]* for )?(dp::(kernels|engine|process_group)::|std::|fmt::|nlohmann::)' "$work/visible"; then
  fail "the library shows what is internal"
fi
[[ $(visible libdp_train.so | grep '^[TDB] ') == "T dp::train_main(int, char**)" ]] || fail "libdp_train shows other things too"

say "the programs of tests/embed, by find_package and pkg-config, and one across the library's border"
mkdir -p "$root/tmp/src"
cp -r "$source"/tests/embed "$source/tests/packages/boundary" "$root/tmp/src/"
inside "$root" bash -exo pipefail -c 'cd /tmp/src
g++ -std=c++20 embed/wrapper/main.cpp $(pkg-config --cflags --libs dp) -o by_pkg_config
./by_pkg_config
g++ -std=c++20 -Wall -Wextra -Werror -fvisibility=hidden -fvisibility-inlines-hidden boundary/main.cpp $(pkg-config --cflags --libs dp) -o border
./border
for project in embed/*/; do
  cmake -S $project -B build/$project >/dev/null
  cmake --build build/$project | tail -1
done
build/embed/wrapper/wrapper
build/embed/own_network/own_network --list-models | grep small_net
build/embed/own_network/own_network --model small_net --cpu 2 --max-steps 30 --no-eval --output-dir run | tail -1'

say "upgrade"
inside "$root" sh -c 'apt-get install -y -qq --no-install-recommends /packages/2/*.deb' >/dev/null
inside "$root" dpkg-query -W -f '${Package} ${Version} ${Status}\n' "${names[@]}" | tee "$work/upgraded"
[[ $(grep -c -- '-2 install ok installed$' "$work/upgraded") == "${#names[@]}" ]] || fail "not every package was upgraded"
inside "$root" dp_train --version
inside "$root" /tmp/src/by_pkg_config

say "remove, then purge with what they needed"
inside "$root" apt-get remove -y -qq "${names[@]}" >/dev/null
for file in "$root"/usr/{bin/dp_train,include/dp,lib/dp} "$root"/usr/lib/x86_64-linux-gnu/libdp*; do
  [[ ! -e $file ]] || fail "remove left ${file#"$root"}"
done
inside "$root" apt-get purge -y -qq --autoremove '~c' >/dev/null  # packages of which only scripts or settings are left
files >"$work/files.after"
diff "$work/files.before" "$work/files.after" || fail "removing the packages left the system different"
echo "no file is left"
