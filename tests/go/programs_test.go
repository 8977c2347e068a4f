package flotilla

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc64"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/tikv/client-go/v2/rawkv"
)

// families are the column families of a cluster of API V1; under V2 there is the first alone.
var families = []string{"", "lock", "write"}

// row is a value, and whether it expires some day.
type row struct {
	value   []byte
	expires bool
}

// program is a sequence of random calls with keys of its own, and the rows that it must find.
type program struct {
	ctx    context.Context
	client *rawkv.Client
	rng    *rand.Rand
	isV2   bool
	keys   [][]byte
	rows   map[string]row
	calls  []string
}

// TestPrograms runs random programs of RawKV calls: FLOTILLA_PROGRAMS of them, from the seed
// FLOTILLA_PROGRAM_SEED on. FLOTILLA_KEYSPACE names a keyspace of API V2.
func TestPrograms(t *testing.T) {
	count, _ := strconv.Atoi(os.Getenv("FLOTILLA_PROGRAMS"))
	if count == 0 {
		t.Skip("FLOTILLA_PROGRAMS asks for none")
	}
	first, _ := strconv.Atoi(os.Getenv("FLOTILLA_PROGRAM_SEED"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var options []rawkv.ClientOpt
	keyspace := os.Getenv("FLOTILLA_KEYSPACE")
	if keyspace != "" {
		options = append(options, rawkv.WithAPIVersion(kvrpcpb.APIVersion_V2), rawkv.WithKeyspace(keyspace))
	}
	endpoints := strings.Split(os.Getenv("FLOTILLA_PD"), ",")
	client, err := rawkv.NewClientWithOpts(ctx, endpoints, options...)
	check(t, "connect", err)
	defer client.Close()
	client.SetAtomicForCAS(true)
	var next atomic.Int64
	var failed atomic.Value
	var runners sync.WaitGroup
	for i := 0; i < 32; i++ {
		runners.Add(1)
		go func() {
			defer runners.Done()
			for failed.Load() == nil {
				seed := int(next.Add(1)) - 1
				if seed >= count {
					return
				}
				if what := newProgram(ctx, client, keyspace != "", first+seed).run(); what != "" {
					failed.Store(fmt.Sprintf("program %d: %s", first+seed, what))
				}
			}
		}()
	}
	runners.Wait()
	if what := failed.Load(); what != nil {
		t.Fatal(what)
	}
	t.Logf("%d programs", count)
}

func newProgram(ctx context.Context, client *rawkv.Client, isV2 bool, seed int) *program {
	rng := rand.New(rand.NewSource(int64(seed)))
	p := &program{ctx: ctx, client: client, rng: rng, isV2: isV2, rows: map[string]row{}}
	known := map[int]bool{}
	for i := 2 + rng.Intn(7); i > 0; i-- {
		known[rng.Intn(256)] = true
	}
	for first := range known {
		p.keys = append(p.keys, append([]byte{byte(first)}, fmt.Sprintf("-go-program-%06d", seed)...))
	}
	sort.Slice(p.keys, func(i, j int) bool { return bytes.Compare(p.keys[i], p.keys[j]) < 0 })
	return p
}

// run makes the calls. It returns what went wrong, or nothing.
func (p *program) run() string {
	for i := 1 + p.rng.Intn(23); i > 0; i-- {
		family := ""
		if !p.isV2 {
			family = families[p.rng.Intn(3)]
		}
		if what := p.call(family); what != "" {
			return what + " after\n" + strings.Join(p.calls, "\n")
		}
	}
	return ""
}

func (p *program) call(family string) string {
	in := rawkv.SetColumnFamily(family)
	key := p.keys[p.rng.Intn(len(p.keys))]
	held, is := p.rows[family+"/"+string(key)]
	note := func(what string) { p.calls = append(p.calls, fmt.Sprintf("%s %q in %q", what, key, family)) }
	switch p.rng.Intn(10) {
	case 0, 1:
		note("put")
		ttl, value := p.ttl(), p.value()
		p.hold(family, key, row{value, ttl > 0})
		return failure(p.client.PutWithTTL(p.ctx, key, value, ttl, in))
	case 2:
		note("get")
		value, err := p.client.Get(p.ctx, key, in)
		return first(failure(err), same(value, held.value, is))
	case 3:
		note("delete")
		delete(p.rows, family+"/"+string(key))
		return failure(p.client.Delete(p.ctx, key, in))
	case 4:
		note("delete the range of")
		delete(p.rows, family+"/"+string(key))
		return failure(p.client.DeleteRange(p.ctx, key, behind(key), in))
	case 5:
		return p.batch(family)
	case 6:
		note("scan")
		return p.scan(family, key)
	case 7:
		note("swap")
		return p.swap(family, key)
	case 8:
		note("ttl")
		left, err := p.client.GetKeyTTL(p.ctx, key, in)
		if err != nil || (left != nil) != is || (is && (*left > 0) != held.expires) {
			return fmt.Sprintf("left are %v, %v; held is %v", left, err, held)
		}
	default:
		// It has no column family.
		key = p.keys[p.rng.Intn(len(p.keys))]
		note("checksum")
		sum, err := p.client.Checksum(p.ctx, key, behind(key))
		want := rawkv.RawChecksum{}
		if held, is := p.rows["/"+string(key)]; is {
			stored := p.stored(key)
			want.Crc64Xor = crc64.Checksum(append(append([]byte{}, stored...), held.value...), crc64.MakeTable(crc64.ECMA))
			want.TotalKvs, want.TotalBytes = 1, uint64(len(stored)+len(held.value))
		}
		if err != nil || sum != want {
			return fmt.Sprintf("the sum is %+v, %v, and not %+v", sum, err, want)
		}
	}
	return ""
}

// stored is the key as a store has it.
func (p *program) stored(key []byte) []byte {
	if p.isV2 {
		return append([]byte{'r', 0, 0, 0}, key...)
	}
	return key
}

// batch writes, reads or deletes some keys at once.
func (p *program) batch(family string) string {
	in := rawkv.SetColumnFamily(family)
	var keys [][]byte
	for _, key := range p.keys {
		if p.rng.Intn(2) == 0 {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return ""
	}
	kind := p.rng.Intn(3)
	p.calls = append(p.calls, fmt.Sprintf("batch of kind %d, %q in %q", kind, keys, family))
	switch kind {
	case 0:
		var values [][]byte
		var ttls []uint64
		for _, key := range keys {
			value, ttl := p.value(), p.ttl()
			values, ttls = append(values, value), append(ttls, ttl)
			p.hold(family, key, row{value, ttl > 0})
		}
		return failure(p.client.BatchPutWithTTL(p.ctx, keys, values, ttls, in))
	case 1:
		values, err := p.client.BatchGet(p.ctx, keys, in)
		if what := failure(err); what != "" {
			return what
		}
		for i, key := range keys {
			held, is := p.rows[family+"/"+string(key)]
			if what := same(values[i], held.value, is); what != "" {
				return what
			}
		}
	default:
		for _, key := range keys {
			delete(p.rows, family+"/"+string(key))
		}
		return failure(p.client.BatchDelete(p.ctx, keys, in))
	}
	return ""
}

// scan reads the range of one key, so that rows of other programs are not met.
func (p *program) scan(family string, key []byte) string {
	options := []rawkv.RawOption{rawkv.SetColumnFamily(family)}
	keyOnly, reverse := p.rng.Intn(2) == 0, p.rng.Intn(2) == 0
	if keyOnly {
		options = append(options, rawkv.ScanKeyOnly())
	}
	var keys, values [][]byte
	var err error
	if reverse {
		keys, values, err = p.client.ReverseScan(p.ctx, behind(key), key, 3, options...)
	} else {
		keys, values, err = p.client.Scan(p.ctx, key, behind(key), 3, options...)
	}
	held, is := p.rows[family+"/"+string(key)]
	if err != nil || len(keys) > 1 || (len(keys) == 1) != is {
		return fmt.Sprintf("a scan found %q, %v; held is %v", keys, err, is)
	}
	if !is {
		return ""
	}
	if !bytes.Equal(keys[0], key) {
		return fmt.Sprintf("a scan found %q", keys[0])
	}
	if keyOnly {
		held.value = nil
	}
	if !bytes.Equal(values[0], held.value) {
		return fmt.Sprintf("a scan found %q and not %q", values[0], held.value)
	}
	return ""
}

func (p *program) swap(family string, key []byte) string {
	held, is := p.rows[family+"/"+string(key)]
	expected, fits := held.value, true
	if p.rng.Intn(4) == 0 {
		expected = p.value()
		fits = is && bytes.Equal(expected, held.value)
	}
	value := p.value()
	in := rawkv.SetColumnFamily(family)
	previous, swapped, err := p.client.CompareAndSwap(p.ctx, key, expected, value, in)
	if what := first(failure(err), same(previous, held.value, is)); what != "" {
		return what
	}
	if swapped != fits {
		return fmt.Sprintf("swapped is %v from %q, expected %q", swapped, held.value, expected)
	}
	if swapped {
		p.hold(family, key, row{value, false})
	}
	return ""
}

func (p *program) hold(family string, key []byte, r row) {
	p.rows[family+"/"+string(key)] = r
}

func (p *program) value() []byte {
	length := p.rng.Intn(9)
	if p.rng.Intn(8) == 0 {
		length = p.rng.Intn(20000)
	}
	return bytes.Repeat([]byte{byte(p.rng.Intn(256))}, length)
}

// ttl is none, or so long that no row of a program expires meanwhile.
func (p *program) ttl() uint64 {
	if p.rng.Intn(2) == 0 {
		return 0
	}
	return uint64(3600 + p.rng.Intn(100000))
}

func behind(key []byte) []byte {
	return append(append([]byte{}, key...), 0)
}

func failure(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func first(one, other string) string {
	if one != "" {
		return one
	}
	return other
}

func same(found, expected []byte, is bool) string {
	if (found != nil) != is || !bytes.Equal(found, expected) {
		return fmt.Sprintf("found %q and not %q (%v)", found, expected, is)
	}
	return ""
}
