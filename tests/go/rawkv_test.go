// Package flotilla tests a cluster with TiKV's Go client as it is published.
//
// FLOTILLA_PD names the endpoints, separated by commas. FLOTILLA_SECONDS is for how long the test
// goes on; whoever runs it may kill and restart stores meanwhile. FLOTILLA_UNARY asks for single
// calls instead of the batch stream that the client uses on its own.
package flotilla

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc64"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/rawkv"
)

func connect(t *testing.T) (context.Context, *rawkv.Client) {
	endpoints := os.Getenv("FLOTILLA_PD")
	if endpoints == "" {
		t.Skip("FLOTILLA_PD names no endpoints")
	}
	if os.Getenv("FLOTILLA_UNARY") != "" {
		config.UpdateGlobal(func(settings *config.Config) { settings.TiKVClient.MaxBatchSize = 0 })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	client, err := rawkv.NewClient(ctx, strings.Split(endpoints, ","), config.DefaultConfig().Security)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return ctx, client
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// spread gives key number i of a round: the first byte walks over the whole key space, so that
// every region gets some.
func spread(round, i int) []byte {
	return []byte(fmt.Sprintf("%c-go-%04d-%04d", byte(i*7), round, i))
}

func TestEverything(t *testing.T) {
	ctx, client := connect(t)
	seconds, _ := strconv.Atoi(os.Getenv("FLOTILLA_SECONDS"))
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	rounds := 0
	var expiring expiries
	for ; rounds == 0 || time.Now().Before(until); rounds++ {
		oneRound(t, ctx, client, rounds)
		expiring.next(t, ctx, client, rounds)
	}
	t.Logf("%d rounds", rounds)
}

func oneRound(t *testing.T, ctx context.Context, client *rawkv.Client, round int) {
	const count = 36
	var keys, values [][]byte
	for i := 0; i < count; i++ {
		keys = append(keys, spread(round, i))
		values = append(values, []byte(fmt.Sprintf("value-%d-%d", round, i)))
	}
	check(t, "put", client.Put(ctx, keys[0], values[0]))
	value, err := client.Get(ctx, keys[0])
	check(t, "get", err)
	if !bytes.Equal(value, values[0]) {
		t.Fatalf("got %q, put %q", value, values[0])
	}
	check(t, "batch put", client.BatchPut(ctx, keys, values))
	found, err := client.BatchGet(ctx, keys)
	check(t, "batch get", err)
	for i := range keys {
		if !bytes.Equal(found[i], values[i]) {
			t.Fatalf("key %q: got %q, put %q", keys[i], found[i], values[i])
		}
	}
	scans(t, ctx, client)
	swaps(t, ctx, client, round)
	checksums(t, ctx, client, round)

	check(t, "delete", client.Delete(ctx, keys[1]))
	value, err = client.Get(ctx, keys[1])
	check(t, "get after delete", err)
	if value != nil {
		t.Fatalf("deleted, and still %q", value)
	}
	check(t, "batch delete", client.BatchDelete(ctx, keys))
	for _, first := range []string{"A", "z"} {
		start := []byte(fmt.Sprintf("%s-go-range-%04d-", first, round))
		inside := append(append([]byte{}, start...), 'k')
		check(t, "put into range", client.Put(ctx, inside, []byte("v")))
		check(t, "delete range", client.DeleteRange(ctx, start, append(append([]byte{}, start...), 'z')))
		value, err = client.Get(ctx, inside)
		check(t, "get after delete range", err)
		if value != nil {
			t.Fatalf("the range was deleted, and still %q", value)
		}
	}
}

// scans reads what the round has put, over all regions, in both directions. Others may put
// something meanwhile, so only keys of this test are compared.
func scans(t *testing.T, ctx context.Context, client *rawkv.Client) {
	all, _, err := client.Scan(ctx, []byte{}, []byte{0xff, 0xff}, 10000)
	check(t, "scan", err)
	up := own(all)
	for i := 1; i < len(up); i++ {
		if bytes.Compare(up[i-1], up[i]) >= 0 {
			t.Fatalf("%q comes before %q", up[i-1], up[i])
		}
	}
	if len(up) < 36 {
		t.Fatalf("a scan of everything found %d of at least 36 rows", len(up))
	}
	all, _, err = client.ReverseScan(ctx, []byte{0xff, 0xff}, []byte{}, 10000)
	check(t, "reverse scan", err)
	down := own(all)
	if len(down) != len(up) {
		t.Fatalf("%d rows up, %d rows down", len(up), len(down))
	}
	for i := range up {
		if !bytes.Equal(up[i], down[len(down)-1-i]) {
			t.Fatalf("row %d: %q up, %q down", i, up[i], down[len(down)-1-i])
		}
	}
	few, _, err := client.Scan(ctx, up[0], []byte{0xff, 0xff}, 7)
	check(t, "scan with limit", err)
	if len(few) != 7 || !bytes.Equal(few[0], up[0]) {
		t.Fatalf("a scan of 7 rows found %d", len(few))
	}
}

// own leaves the keys of this test.
func own(keys [][]byte) [][]byte {
	var mine [][]byte
	for _, key := range keys {
		if bytes.Contains(key, []byte("-go-")) {
			mine = append(mine, key)
		}
	}
	return mine
}

// checksums compares the checksum of some rows with one that is computed here.
func checksums(t *testing.T, ctx context.Context, client *rawkv.Client, round int) {
	name := fmt.Sprintf("-go-sum-%04d-", round)
	keys, values := [][]byte{}, [][]byte{}
	for i := 0; i < 10; i++ {
		keys = append(keys, []byte(fmt.Sprintf("p%s%d", name, i)))
		values = append(values, bytes.Repeat([]byte{byte(i)}, 100*i))
	}
	check(t, "put for a checksum", client.BatchPut(ctx, keys, values))
	found, err := client.Checksum(ctx, []byte("p"+name), []byte("p"+name+"~"))
	check(t, "checksum", err)
	var expected rawkv.RawChecksum
	table := crc64.MakeTable(crc64.ECMA)
	for i := range keys {
		row := append(append([]byte{}, keys[i]...), values[i]...)
		expected.Crc64Xor ^= crc64.Checksum(row, table)
		expected.TotalKvs++
		expected.TotalBytes += uint64(len(row))
	}
	if found != expected {
		t.Fatalf("the checksum is %v, not %v", found, expected)
	}
}

// slack is how long a row may be there after its time: a store's log names times that are ahead of
// its clock, and an answer takes its way.
const slack = 200 * time.Millisecond

// expiries has rows whose time comes, and the moments after which no answer may have them.
type expiries struct {
	keys []string
	gone []time.Time
}

// next puts rows that expire, and looks at those whose time has come.
func (e *expiries) next(t *testing.T, ctx context.Context, client *rawkv.Client, round int) {
	key := func(what string) []byte { return []byte(fmt.Sprintf("t-expires-%s-%04d", what, round)) }
	short, long, ever := key("short"), key("long"), key("ever")
	check(t, "put with ttl", client.PutWithTTL(ctx, short, []byte("v"), 1))
	e.keys, e.gone = append(e.keys, string(short)), append(e.gone, time.Now().Add(time.Second+slack))
	both, values := [][]byte{long, ever}, [][]byte{[]byte("v"), []byte("v")}
	check(t, "batch put with ttls", client.BatchPutWithTTL(ctx, both, values, []uint64{3600, 0}))
	left, err := client.GetKeyTTL(ctx, long)
	check(t, "ttl", err)
	if left == nil || *left < 3000 || *left > 3600 {
		t.Fatalf("of 3600 seconds there are %v left", left)
	}
	left, err = client.GetKeyTTL(ctx, ever)
	check(t, "ttl of a row for ever", err)
	if left == nil || *left != 0 {
		t.Fatalf("a row for ever has %v left", left)
	}
	left, err = client.GetKeyTTL(ctx, key("none"))
	check(t, "ttl of nothing", err)
	if left != nil {
		t.Fatalf("nothing has %d s left", *left)
	}
	for len(e.gone) > 0 && time.Now().After(e.gone[0]) {
		value, err := client.Get(ctx, []byte(e.keys[0]))
		check(t, "get after the time", err)
		if value != nil {
			t.Fatalf("%s is there after its time", e.keys[0])
		}
		e.keys, e.gone = e.keys[1:], e.gone[1:]
	}
}

func swaps(t *testing.T, ctx context.Context, client *rawkv.Client, round int) {
	client.SetAtomicForCAS(true)
	defer client.SetAtomicForCAS(false)
	key := []byte(fmt.Sprintf("m-go-cas-%04d", round))
	check(t, "delete before swaps", client.Delete(ctx, key))
	_, _, err := client.CompareAndSwap(ctx, key, nil, []byte("1"))
	check(t, "swap from nothing", err)
	// A swap that the client repeats on its own finds its own value, so what counts is the value.
	value, err := client.Get(ctx, key)
	check(t, "get after swap", err)
	if string(value) != "1" {
		t.Fatalf("swapped from nothing to 1, and got %q", value)
	}
	previous, swapped, err := client.CompareAndSwap(ctx, key, []byte("2"), []byte("3"))
	check(t, "swap from the wrong value", err)
	if swapped || string(previous) != "1" {
		t.Fatalf("swapped from 2, which it was not: %v, %q", swapped, previous)
	}
}
