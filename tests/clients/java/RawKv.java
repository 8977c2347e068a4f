import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.tikv.common.TiConfiguration;
import org.tikv.common.TiSession;
import org.tikv.kvproto.Kvrpcpb.KvPair;
import org.tikv.raw.RawKVClient;
import org.tikv.shade.com.google.protobuf.ByteString;

/**
 * TiKV's client for Java, as it is published, against a cluster of Flotilla.
 *
 * <p>FLOTILLA_PD names the endpoints, separated by commas; FLOTILLA_SECONDS says for how long the rounds
 * go on; FLOTILLA_API is v1ttl or v2. Whoever runs it may split regions and kill stores meanwhile.
 */
public final class RawKv {
  private static final int COUNT = 9;

  public static void main(String[] args) throws Exception {
    TiConfiguration conf = TiConfiguration.createRawDefault(System.getenv("FLOTILLA_PD"));
    conf.setEnableAtomicForCAS(true);
    if ("v2".equals(System.getenv("FLOTILLA_API"))) {
      conf.setApiVersion(TiConfiguration.ApiVersion.V2);
    }
    String seconds = System.getenv("FLOTILLA_SECONDS");
    long end = System.nanoTime() + 1_000_000_000L * (seconds == null ? 0 : Long.parseLong(seconds));
    int rounds = 0;
    try (TiSession session = TiSession.create(conf);
        RawKVClient client = session.createRawClient()) {
      while (rounds == 0 || System.nanoTime() < end) {
        oneRound(client, rounds);
        rounds++;
      }
    }
    System.out.println("java: " + rounds + " rounds passed");
    // The client leaves threads behind.
    System.exit(0);
  }

  private static void oneRound(RawKVClient client, int round) {
    List<ByteString> keys = new ArrayList<>();
    Map<ByteString, ByteString> rows = new HashMap<>();
    for (int place = 0; place < COUNT; place++) {
      ByteString key = key(place, round);
      keys.add(key);
      rows.put(key, ByteString.copyFromUtf8("value of ").concat(key));
    }
    ByteString first = keys.get(0);
    client.put(first, rows.get(first));
    same(client.get(first), Optional.of(rows.get(first)));
    client.batchPut(rows);
    Map<ByteString, ByteString> found = new HashMap<>();
    for (KvPair pair : client.batchGet(keys)) {
      found.put(pair.getKey(), pair.getValue());
    }
    same(found, rows);
    Map<ByteString, ByteString> scanned = new HashMap<>();
    for (KvPair pair : client.scan(key(0, 0), ByteString.copyFrom(new byte[] {(byte) 0xff}), 1_000)) {
      scanned.put(pair.getKey(), pair.getValue());
    }
    for (ByteString key : keys) {
      same(scanned.get(key), rows.get(key));
    }

    ByteString second = keys.get(1);
    client.put(second, rows.get(second), 3_600L);
    Optional<Long> left = client.getKeyTTL(second);
    same(left.isPresent() && left.get() > 3_000 && left.get() <= 3_600, true);
    ByteString value = ByteString.copyFromUtf8("swapped");
    client.compareAndSet(first, Optional.of(rows.get(first)), value);
    same(client.get(first), Optional.of(value));
    client.delete(first);
    same(client.get(first), Optional.empty());
    client.compareAndSet(first, Optional.empty(), value);
    same(client.get(first), Optional.of(value));

    client.deleteRange(second, second.concat(ByteString.copyFromUtf8("~")));
    same(client.get(second), Optional.empty());
    same(client.getKeyTTL(second), Optional.empty());
    client.batchDelete(keys);
    same(client.batchGet(keys).isEmpty(), true);
  }

  /** Key number {@code place} of a round: over the whole key space. */
  private static ByteString key(int place, int round) {
    ByteString first = ByteString.copyFrom(new byte[] {(byte) (place * 28)});
    return first.concat(ByteString.copyFromUtf8(String.format("-java-%06d", round)));
  }

  private static void same(Object found, Object expected) {
    if (found == null || !found.equals(expected)) {
      throw new AssertionError("found " + found + " and not " + expected);
    }
  }
}
