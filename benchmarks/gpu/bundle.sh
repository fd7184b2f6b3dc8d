# shellcheck shell=bash disable=SC2154  # build_packages, started_in: from dev
# ./dev bundle: everything that the build and the tests need, in a folder for a host without network and root. Sourced
# by dev.

# Packages that every host with a compiler has.
bundle_assumed='^(libc6|libc6-dev|libgcc-s1|libstdc\+\+6|libgomp1|debconf.*|cdebconf|dpkg|procps|perl.*|python3.*|install-info|media-types)$'
bundle_limit_mib=57

# bundle_packages <package>...: these packages and their dependencies, without those in bundle_assumed. Uses the first
# of several alternatives.
bundle_packages() {
  local -A needs=() seen=()
  local queue=("$@") package found
  while read -r package found; do needs[$package]+=" $found"; done < <(apt-cache depends --recurse --important "$@" | awk '
    /^[a-z0-9]/ { package = $1; alternative = 0; next }
    /^ *\|?(Pre)?Depends:/ { if (!alternative && $2 !~ /^</) print package, $2; alternative = /\|(Pre)?Depends:/ }')
  while ((${#queue[@]})); do
    package=${queue[0]}
    queue=("${queue[@]:1}")
    [[ -n ${seen[$package]:-} || $package =~ $bundle_assumed ]] && continue
    seen[$package]=1
    # shellcheck disable=SC2206  # names without spaces
    queue+=(${needs[$package]:-})
  done
  printf '%s\n' "${!seen[@]}" | sort
}

# bundle_wanted <0|1>: the names in build_packages, without g++, ccache and those of dp_fetch, which needs a network;
# with cmake if the argument is 1.
bundle_wanted() {
  local entry package
  for entry in "${build_packages[@]}"; do
    package=${entry%%=*}
    case $package in
      g++ | ccache | libcurl4-openssl-dev | libarchive-dev) ;;
      cmake) if (($1)); then echo cmake; fi ;;
      *) echo "$package" ;;
    esac
  done
}

# Moves the system's folders below prefix/usr. Absolute links then point into the prefix.
bundle_relocate() {
  local prefix=$1 folder link target arch_folder arch_headers
  arch_folder=$prefix/usr/lib/$(gcc -print-multiarch)
  for folder in lib bin sbin; do
    if [[ -d $prefix/$folder && ! -L $prefix/$folder ]]; then
      mkdir -p "$prefix/usr/$folder"
      cp -a "$prefix/$folder/." "$prefix/usr/$folder/"
      rm -rf "${prefix:?}/$folder"
    fi
  done
  # A compiler searches this folder by default only in /usr.
  arch_headers=$prefix/usr/include/$(gcc -print-multiarch)
  if [[ -d $arch_headers ]]; then
    cp -a "$arch_headers/." "$prefix/usr/include/"
    rm -rf "$arch_headers"
  fi
  while read -r link; do
    target=$(readlink "$link")
    case $target in
      /lib/*) target=/usr$target ;;
      /usr/*) ;;
      *) continue ;;
    esac
    if [[ -e $prefix$target ]]; then
      ln -sfn "$(realpath --relative-to="$(dirname "$link")" "$prefix$target")" "$link"
    else
      rm -f "$link"
    fi
  done < <(find "$prefix/usr" -type l)
  if [[ -d $arch_folder/pkgconfig ]]; then
    # shellcheck disable=SC2016  # ${pcfiledir} is for pkg-config
    sed -i -E 's|^prefix=.*|prefix=${pcfiledir}/../../..|' "$arch_folder"/pkgconfig/*.pc
  fi
}

bundle_prune() {
  local prefix=$1 archive
  rm -rf "$prefix"/usr/share/{doc,man,info,locale,lintian,bash-completion,vim,emacs,bug,perl5,zsh,aclocal,doc-base,libthai,examples,elpa-src} \
    "$prefix"/usr/share/cmake-*/Help "${prefix:?}"/{etc,var,run} "$prefix"/usr/share/cmake-*/include "$prefix"/usr/sbin "$prefix"/usr/games
  rm -f "$prefix"/usr/bin/{cpack,openssl,c_rehash,pngfix,png-fix-itxt} "$prefix"/usr/include/CL/*.hpp
  # Static libraries that also exist as shared ones.
  while read -r archive; do
    if [[ -e ${archive%.a}.so ]]; then rm -f "$archive"; fi
  done < <(find "$prefix/usr/lib" -name '*.a')
}

bundle_env() {
  cat <<'TEXT'
# Source this: . DIR/env.sh
dp_bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dp_arch=$(ls "$dp_bundle/usr/lib" | grep -m1 -- -linux-gnu)
export DP_SKIP_DEPS=1
export PATH=$dp_bundle/usr/bin:$PATH
export LD_LIBRARY_PATH=$dp_bundle/usr/lib/$dp_arch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CMAKE_PREFIX_PATH=$dp_bundle/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
export PKG_CONFIG_PATH=$dp_bundle/usr/lib/$dp_arch/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
unset dp_bundle dp_arch
TEXT
}

# bundle_binaries [FILE] [--build DIR]: packs the programs. With --build it packs those in DIR and builds nothing.
bundle_binaries() {
  local file=build/binaries.tar.xz folder=build/binaries built=0
  while (($#)); do
    case $1 in
      --build) [[ $# -ge 2 ]] || fail "--build needs a folder"; folder=$2; built=1; shift ;;
      -*) fail "bundle --binaries accepts --build, not '$1'" ;;
      *) file=$1; [[ $file == /* ]] || file=$started_in/$file ;;
    esac
    shift
  done
  if ((built == 0)); then
    deps
    # Programs find the libraries that are packed with them in any folder. DT_RPATH, because it also applies to the
    # dependencies of libraries.
    # shellcheck disable=SC2016  # the loader expands $ORIGIN
    step cmake --preset release -B $folder -DDP_NATIVE=OFF -DDP_CUDA=ON -DDP_CUDA_ARCHITECTURES=90 -DCMAKE_BUILD_RPATH='$ORIGIN/../../lib;$ORIGIN/../lib' \
      -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags --log-level=WARNING
    step cmake --build $folder -j "$(jobs)" --target dp_train dp_cuda dp_peer_probe dp_bench bench_step bench_ops bench_comm test_gpu test_real_libraries \
      test_ops test_golden test_mnist_steps test_resnet18 op_bits op_bits_simulated
  fi
  step python3 -B benchmarks/gpu/carried.py "$folder" "$file"
}

# bundle DIR [--cmake]
bundle() {
  local prefix='' with_cmake=0 downloads packages wanted file kib
  if [[ ${1:-} == --binaries ]]; then
    bundle_binaries "${@:2}"
    return
  fi
  while (($#)); do
    case $1 in
      --cmake) with_cmake=1 ;;
      -*) fail "bundle accepts --cmake, or --binaries as its first argument, not '$1'" ;;
      *) prefix=$1 ;;
    esac
    shift
  done
  [[ -n $prefix ]] || fail "bundle needs a folder:   ./dev bundle DIR"
  [[ $prefix == /* ]] || prefix=$started_in/$prefix
  [[ ! -e $prefix || -z $(ls -A "$prefix") ]] || fail "$prefix is not empty; give a new folder"
  command -v apt-get >/dev/null || fail "bundle uses Debian packages, but apt-get was not found"
  mkdir -p "$prefix"
  prefix=$(cd "$prefix" && pwd)
  mapfile -t wanted < <(bundle_wanted "$with_cmake")
  mapfile -t packages < <(bundle_packages "${wanted[@]}")
  ((${#packages[@]} >= ${#wanted[@]})) || fail "apt lists no packages; as root: apt-get update"
  downloads=$(mktemp -d)
  trap 'rm -rf "$downloads"' RETURN
  say "downloading ${#packages[@]} packages: ${packages[*]}"
  (cd "$downloads" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}")
  for file in "$downloads"/*.deb; do dpkg -x "$file" "$prefix"; done
  bundle_relocate "$prefix"
  bundle_prune "$prefix"
  find "$prefix" -xtype l -delete
  find "$prefix" -type d -empty -delete
  bundle_env >"$prefix/env.sh"
  (cd "$downloads" && printf '%s\n' *.deb) >"$prefix/packages.txt"
  kib=$(du -sk "$prefix" | cut -f1)
  say "$prefix: ${#packages[@]} packages, $((kib / 1024)) MiB; . $prefix/env.sh"
  if ((with_cmake == 0 && kib > bundle_limit_mib * 1024)); then
    fail "the bundle has $((kib / 1024)) MiB, more than $bundle_limit_mib"
  fi
}
