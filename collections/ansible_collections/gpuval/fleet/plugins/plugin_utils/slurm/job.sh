PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"@SLURM@; export PATH
# Under --export=NIL newer Slurm sets no HOME, and dash knows none without it. An empty HOME makes ~/.cache /.cache.
HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"; export HOME
[ -n "$HOME" ] || unset HOME
for python in @PYTHONS@; do
  command -v "$python" >/dev/null 2>&1 || continue
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || continue
  exec "$python" -c @PROGRAM@ @SOURCE@ @COMMENT@
done
echo "no Python 3.9 or newer among: @PYTHONS@" >&2
exit @NO_PYTHON@
